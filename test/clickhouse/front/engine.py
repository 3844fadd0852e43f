# SPDX-License-Identifier: Apache-2.0
"""Runs statements in ClickHouse's engine for front.Engine, one after the other.

A request on file descriptor 3 is the length of a JSON object in four bytes, big end first, that object,
and as many bytes of data as its "data" says: what an INSERT is to take, in "format". An answer on file
descriptor 4 has the same shape: "error" is the engine's message, "" where there is none, "processor" the
nanoseconds of processor time that this program has taken so far, and the data are what the statement
answers, in "format". The end of the requests ends the program.
"""

import json
import os
import sys
import time

import chdb


def run(connection, request, data):
    """Returns what the statement answers."""
    database = request["database"] or "default"
    connection.query("USE `" + database.replace("\\", "\\\\").replace("`", "\\`") + "`")
    settings = request["settings"]
    if settings:
        quoted = (
            name + " = '" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
            for name, value in settings.items()
        )
        connection.query("SET " + ", ".join(quoted))
    try:
        if request["insert"]:
            inserter = connection.send_insert(request["sql"], request["format"])
            with inserter:
                inserter.append(data)
                inserter.finish()
            return b""
        return connection.query(request["sql"], request["format"], params=request["parameters"]).bytes() or b""
    finally:
        # The connection outlives the statement, and the next one has settings of its own.
        if settings:
            connection.query("SET " + ", ".join(name + " = DEFAULT" for name in settings))


def main():
    connection = chdb.connect(sys.argv[1])
    requests, answers = os.fdopen(3, "rb"), os.fdopen(4, "wb")

    def answer(error, data=b""):
        fields = {"error": error, "data": len(data), "processor": time.process_time_ns()}
        head = json.dumps(fields).encode()
        answers.write(len(head).to_bytes(4, "big") + head)
        answers.write(data)
        answers.flush()

    answer("")  # ready
    while size := requests.read(4):
        request = json.loads(requests.read(int.from_bytes(size, "big")))
        data = requests.read(request["data"])
        try:
            result = run(connection, request, data)
        except Exception as e:  # whatever it is, the next statement may be right
            answer(str(e) or repr(e))
        else:
            answer("", result)


if __name__ == "__main__":
    main()
