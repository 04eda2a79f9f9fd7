"""Rules that make operators that a target has of ones that it lacks, one rule a file."""
