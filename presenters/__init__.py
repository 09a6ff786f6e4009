"""What people are shown of each technique: one file a technique, found by the name of its graph."""
