"""The client of a console: your program reaches neither Redis nor a broker, only HTTP.

    cd 08_on_done && mulligan up                  # terminal 1: workers, and a console on port 8700
    python 09_over_http.py                        # terminal 2

If the console has tokens, give one: MULLIGAN_TOKEN=… python 09_over_http.py
"""

import os

from mulligan import Client

with Client(os.environ.get("CONSOLE_URL", "http://127.0.0.1:8700")) as client:
    handle = client.submit(
        "Write one friendly line to a customer whose parcel is late.",
        task_type="reply",
        runner="writer",  # a profile of the workers' mulligan.toml
        verifiers=[{"id": "text.match", "contains": "sorry", "max_length": 80}],
    )
    for event in client.watch(handle):  # as it happens
        if event.data.get("state") == "settled":
            print(f"attempt {event.data['attempt']}: score {event.data['score']}")
    result = client.wait(handle)

print(result.value)
