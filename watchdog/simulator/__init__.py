"""An OpenAI-compatible stand-in for vLLM: its process tree, metrics, signals, litter and faults.

Standard library only, and nothing else of this project: it has to start in a moment and it must
not be able to share a defect with the watchdog that is tested against it.
"""
