"""The oracle: lockstep of a captured and an eager arm, the rungs, and the attribution of what fails."""
