"""What flows through the graphs: records, states and runtime contexts. All of it is JSON."""
