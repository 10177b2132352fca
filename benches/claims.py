#!/usr/bin/env python3
"""Measures the keys per second of a worker over HTTP, with and without clients that misuse the server.

    benches/claims.py PROGRAM [ROUNDS [KEYS [CONNECTIONS]]]

Each round adds KEYS keys, and measures the worker alone and beside each kind of client, in alternating order. The worker
claims ten keys at a time, and completes them. `polling` clients claim from an empty queue without a wait, and `guessing`
clients send wrong tokens; both ask again at once. They have the lowest priority, because they would be on other machines.
"""

import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

TOKEN = "0123456789abcdef"


class Client:
    def __init__(self, host, port, queue, token=TOKEN):
        self.connection = http.client.HTTPConnection(host, port, timeout=120)
        self.path = f"/queues/{queue}/api/v1/"
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def post(self, action, body):
        self.connection.request("POST", self.path + action, json.dumps(body), self.headers)
        answer = self.connection.getresponse()
        return answer.status, json.loads(answer.read())


def misuse(kind, host, port):
    """Sends requests until the process is ended."""
    os.nice(19)
    token = TOKEN if kind == "polling" else "0000000000000000"
    client = Client(host, port, "empty", token)
    while True:
        try:
            client.post("claim", {"worker": kind, "wait": 0})
        except (OSError, http.client.HTTPException):
            client.connection.close()


def other_address():
    """Returns an address of this machine that is not on loopback, because wrong tokens count per address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0]


def keys_per_second(port, keys):
    client, done = Client("127.0.0.1", port, "busy"), 0
    start = time.monotonic()
    while done < keys:
        status, answer = client.post("claim", {"worker": "good", "max": 10, "wait": 10})
        assert status == 200, answer
        claims = [{"key": claim["key"], "token": claim["token"]} for claim in answer["claims"]]
        if claims:
            status, answer = client.post("complete", {"claims": claims})
            assert status == 200, answer
        done += len(claims)
    return keys / (time.monotonic() - start)


def measure(kind, port, keys, connections, add):
    add("busy", "".join(f"key/{number}\n" for number in range(keys)))
    host = other_address() if kind == "guessing" else "127.0.0.1"
    command = [sys.executable, __file__, "misuse", kind, host, str(port)]
    clients = [subprocess.Popen(command) for _ in range(connections if kind != "alone" else 0)]
    try:
        # The clients need time to start.
        time.sleep(1 if clients else 0)
        return keys_per_second(port, keys)
    finally:
        for client in clients:
            client.kill()
            client.wait()


def main(program, rounds=9, keys=3000, connections=1):
    with tempfile.TemporaryDirectory() as directory:
        store = ["--store", f"sqlite:{directory}/jobs.db"]

        def add(queue, lines):
            command = [program, "add", *store, "--queue", queue, "--summary", "none"]
            subprocess.run(command, input=lines, text=True, check=True)

        add("empty", "first\n")
        subprocess.run([program, "cancel", *store, "--queue", "empty", "first"], check=True, stderr=subprocess.DEVNULL)
        environment = os.environ | {"REQUEUE_TOKEN": TOKEN}
        log = open(f"{directory}/log", "w+")
        server = subprocess.Popen(
            [program, "serve", "0.0.0.0:0", *store, "--serve-admin"], env=environment, stderr=log
        )
        while "dashboard: " not in (said := open(log.name).read()):
            time.sleep(0.05)
        port = int(said.split("dashboard: ")[1].split("/")[2].rsplit(":", 1)[1])
        rates = {"alone": [], "polling": [], "guessing": []}
        for number in range(rounds):
            for kind in list(rates)[:: 1 if number % 2 else -1]:
                rates[kind].append(measure(kind, port, keys, connections, add))
        server.send_signal(signal.SIGTERM)
        server.wait()
    for kind, found in rates.items():
        ratio = statistics.median(one / alone for one, alone in zip(found, rates["alone"]))
        print(f"{kind:9} {statistics.median(found):7.0f} keys/s, {ratio:.2f} of alone")


if __name__ == "__main__":
    if sys.argv[1:2] == ["misuse"]:
        misuse(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main(sys.argv[1], *map(int, sys.argv[2:]))
