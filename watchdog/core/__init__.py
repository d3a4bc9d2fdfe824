"""The pure heart: values, judgement and restraint. No I/O, no clock, no threads, no third party.

Time is a number inside the event: seconds of CLOCK_MONOTONIC, never the wall clock.
"""
