"""What has weights: chat models and encoders, and the resources that open each of them once."""
