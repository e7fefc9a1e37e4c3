"""What is known of the trainers that can be attached, and checks before a run."""
