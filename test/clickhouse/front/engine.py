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


class Session:
    """Runs statements, and changes the database and the settings only if those of the next one differ."""

    def __init__(self, connection):
        self.connection, self.database, self.settings = connection, "", {}

    def prepare(self, database, settings):
        """Applies what differs from the previous statement, whose settings do not outlive it."""
        if database != self.database:
            self.connection.query("USE `" + database.replace("\\", "\\\\").replace("`", "\\`") + "`")
            self.database = database
        changes = [name + " = DEFAULT" for name in self.settings if name not in settings]
        for name, value in settings.items():
            if self.settings.get(name) != value:
                changes.append(name + " = '" + value.replace("\\", "\\\\").replace("'", "\\'") + "'")
        if changes:
            self.connection.query("SET " + ", ".join(changes))
            self.settings = settings

    def run(self, request, data):
        """Returns what the statement answers."""
        self.prepare(request["database"] or "default", request["settings"] or {})
        if request["insert"]:
            inserter = self.connection.send_insert(request["sql"], request["format"])
            with inserter:
                inserter.append(data)
                inserter.finish()
            return b""
        return self.connection.query(request["sql"], request["format"], params=request["parameters"]).bytes() or b""


def main():
    session = Session(chdb.connect(sys.argv[1]))
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
            result = session.run(request, data)
        except Exception as e:  # whatever it is, the next statement may be right
            answer(str(e) or repr(e))
        else:
            answer("", result)


if __name__ == "__main__":
    main()
