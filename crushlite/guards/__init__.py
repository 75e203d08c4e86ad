"""What refuses, changes or comments what agents do: `GuardPart`, for parts of wings."""
