"""Works on a queue with the client that a generator has made from the description of the API: `requeue_api`."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
from requeue_api import AuthenticatedClient
from requeue_api.api.default import (
    post_api_v1_add,
    post_api_v1_claim,
    post_api_v1_complete,
    post_api_v1_fail,
    post_api_v1_renew,
)
from requeue_api.models import (
    AddsKeysItem,
    Endings,
    Failed,
    FailedClaim,
    NamedClaim,
    NewClaim,
    PostApiV1AddBody,
    Problem,
    Renewals,
)

TOKEN = "0123456789abcdef"


def results(answer):
    """Returns the results of claims as texts, and fails on an error."""
    assert not isinstance(answer, Problem), answer
    return [str(one.result) for one in answer.results]


def work(client):
    keys = [AddsKeysItem(key=key) for key in ("good", "bad")]
    added = post_api_v1_add.sync(client=client, body=PostApiV1AddBody(keys=keys))
    assert [str(result) for result in added.results] == ["new", "new"], added

    claims = {}
    while len(claims) < 2:
        found = post_api_v1_claim.sync(client=client, body=NewClaim(worker="generated", max_=2))
        claims |= {claim.key: claim.token for claim in found.claims}
    good = NamedClaim(key="good", token=claims["good"])
    renewed = post_api_v1_renew.sync(client=client, body=Renewals(claims=[good], lease=60.0))
    assert results(renewed) == ["renewed"], renewed
    completed = post_api_v1_complete.sync(client=client, body=Endings(claims=[good]))
    assert results(completed) == ["completed"], completed
    bad = FailedClaim(key="bad", token=claims["bad"], error="no such user", give_up=True)
    failed = post_api_v1_fail.sync(client=client, body=Failed(claims=[bad]))
    assert results(failed) == ["parked"], failed

    # The second end of a claim is an error that the description has, too.
    again = post_api_v1_complete.sync(client=client, body=Endings(claims=[good]))
    assert [str(one.result) for one in again.results] == ["lost"], again
    assert "good" in again.error, again


def main(program):
    with tempfile.TemporaryDirectory() as directory:
        store = f"sqlite:{Path(directory) / 'jobs.db'}"
        subprocess.run([program, "add", "--store", store, "first"], check=True)
        subprocess.run([program, "cancel", "--store", store, "first"], check=True)
        command = [program, "serve", "0", "--store", store, "--queue", "default", "--serve-admin"]
        environment = os.environ | {"REQUEUE_TOKEN": TOKEN}
        server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        try:
            address = next(line.split()[-1] for line in server.stderr if "dashboard: " in line)
            url, patience = address.rstrip("/"), httpx.Timeout(60)
            with AuthenticatedClient(base_url=url, token=TOKEN, timeout=patience) as client:
                work(client)
        finally:
            server.terminate()
            server.wait()


main(sys.argv[1])
