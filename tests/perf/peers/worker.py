"""The worker tree that every subject keeps alive: run by path, below the system's bare Python.

`python -IS worker.py --folder FOLDER --port PORT [--exit-after SECONDS] [--ready-fd N]`

The leader writes one line to FOLDER/starts (monotonic seconds, its pid, its child's pid) before
anything else, then answers on loopback: /health, and enough of vLLM's /metrics and API for a
supervisor that asks an engine. The child is a `sleep` of another name: it ignores SIGTERM, and it
survives the leader. While FOLDER/saturated exists, /health and completions wait and tokens flow.
"""

from __future__ import annotations

import os
import signal
import sys
import time

BEGAN = time.monotonic()
WAIT = 600.0
"""Seconds that a saturated worker lets a request wait: longer than any measurement."""
SERIES = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} %d
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} %d
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} %d
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="tiny"} %d
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",model_name="tiny",finished_reason="length"} %d
"""
MODELS = '{"object":"list","data":[{"id":"tiny","object":"model","max_model_len":4096}]}'
COMPLETION = (
    '{"id":"c","object":"text_completion","created":1,"model":"tiny","choices":[{"index":0,'
    '"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}'
)


def main() -> None:
    """Fork the child, say so, serve."""
    words = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    folder = words["--folder"]
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.execv("/bin/sleep", [f"engine-core {folder}", "3600"])  # noqa: S606  # as EngineCore
    with open(f"{folder}/starts", "a") as starts:  # noqa: PTH123  # pathlib costs the start 5 ms
        starts.write(f"{BEGAN} {os.getpid()} {child}\n")
    if after := float(words.get("--exit-after", 0)):
        time.sleep(after)
        sys.exit(1)
    _serve(folder, int(words["--port"]), int(words.get("--ready-fd", 0)))


def _serve(folder: str, port: int, ready: int) -> None:
    import socket
    import threading

    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen(64)
    if ready:
        os.write(ready, b"\n")
        os.close(ready)
    while True:
        connection = server.accept()[0]
        threading.Thread(target=_answer, args=(connection, folder), daemon=True).start()


def _answer(connection, folder):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  # socket is imported late
    with connection:
        head = connection.recv(65536).decode("latin-1")
        method, path = [*head.split(" ", 2), "", ""][:2]
        busy = os.path.exists(f"{folder}/saturated")  # noqa: PTH110  # as above
        body, kind = _body(path, busy), "application/json"
        if path == "/metrics":
            kind = "text/plain; version=0.0.4; charset=utf-8"
        elif busy and (method == "POST" or path.startswith(("/health", "/ping"))):
            time.sleep(WAIT)
        data = body.encode()
        header = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n"
        connection.sendall(f"{header}Connection: close\r\n\r\n".encode())
        if method != "HEAD":
            connection.sendall(data)


def _body(path: str, busy: bool) -> str:  # noqa: FBT001  # one caller
    if path == "/metrics":
        tokens = int((time.monotonic() - BEGAN) * 1000) if busy else 0
        return SERIES % (64 * busy, 200 * busy, tokens, tokens, tokens // 100)
    return {"/v1/models": MODELS, "/v1/completions": COMPLETION, "/version": '{"version":"0"}'}.get(
        path, ""
    )


main()
