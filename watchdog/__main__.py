"""``python -m watchdog`` is ``vllm-watchdog``."""

from watchdog.cli import main

if __name__ == "__main__":
    main()
