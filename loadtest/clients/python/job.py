"""What a Python client program has to do, told once for every library: read
the flags, do the job of the mode, print the verdict.

The contract (flags, modes, last line, exit code) is the one that
loadtest/clients/README.md gives for every language.

A library is a module or object with
  create(args) -> str             makes or finds the topic, says how
  Producer(args)                  send(key, value, done) hands a record over, done(error or None)
                                  is called once; pump() lets answers in; close()
  Consumer(args)                  poll() -> [(key, value)], waits 0.5 s at most; close()
  list_topics(args, timeout)      a fresh client asks for the topics once
"""

import argparse
import os
import sys
import threading
import time
import uuid

SEND_EVERY = 0.05  # steady: seconds from one record to the next
SETTLE = 0.5  # a new topic takes a moment to reach every broker
ONCE_LIMIT = 60  # once: the whole program, seconds
STEADY_EXTRA = 90  # steady and bootstraps: beyond --seconds
FLUSH_LIMIT = 45  # steady: from the last send to its answer
DRAIN_LIMIT = 80  # steady: from the last send to the last record back
LIST_LIMIT = 10  # bootstraps: one client, from start to topic list


class Failure(Exception):
    """The job is not done; its text is the verdict's reason."""


class Ledger:
    """Who was acknowledged and who came back. Every record carries the run's
    own mark, so records of other runs on the same topic are passed over."""

    def __init__(self, count_errors):
        self.run = uuid.uuid4().hex[:12]
        self.count_errors = count_errors
        self.lock = threading.Lock()
        self.acked, self.seen, self.errors = set(), set(), 0

    def record(self, n):
        """Key and value of record n; neighbours differ in length and content, so a mix-up shows."""
        return b"%d" % n, f"{self.run}/{n}/{'x' * (n % 64)}".encode()

    def ack(self, n):
        with self.lock:
            self.acked.add(n)

    def see(self, key, value):
        mark, _, rest = (value or b"").partition(b"/")
        if mark != self.run.encode():
            return
        number = rest.partition(b"/")[0]
        if not number.isdigit() or (key, value) != self.record(int(number)):
            raise Failure(f"record differs from what was sent: key {key!r}, value {value!r}")
        with self.lock:
            self.seen.add(int(number))

    def failed(self, what):
        """Counts an error that the application saw."""
        with self.lock:
            self.errors += 1
        log(f"error: {what}")

    def missing(self):
        """The acknowledged records that have not come back, in order."""
        with self.lock:
            return sorted(self.acked - self.seen)

    def __str__(self):
        with self.lock:
            figures = f"produced={len(self.acked)} consumed={len(self.seen)}"
            return figures + f" errors={self.errors}" if self.count_errors else figures


def log(text):
    print(text, flush=True)


finishing = threading.Lock()  # held for ever by whoever prints the verdict


def finish(line, code):
    """Prints the one last line and ends the process, whatever its threads do."""
    finishing.acquire()
    log(line)
    sys.stderr.flush()
    os._exit(code)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True, help="the one bootstrap address, host:port")
    parser.add_argument("--topic", default="")
    parser.add_argument("--group", default="", help="consumer group (default: one of its own)")
    parser.add_argument("--mode", default="once", choices=["once", "steady", "bootstraps"])
    parser.add_argument("--count", type=int, default=20, help="once: records to produce and consume")
    parser.add_argument("--seconds", type=int, default=30, help="steady, bootstraps: how long")
    args = parser.parse_args()
    if not args.topic and args.mode != "bootstraps":
        parser.error("--topic NAME is required")
    args.group = args.group or f"{args.topic}-{time.time_ns()}"
    return args


def start():
    """Flags, an empty ledger, and the limit that ends the process."""
    args = parse()
    ledger = Ledger(args.mode == "steady")
    limit = ONCE_LIMIT if args.mode == "once" else args.seconds + STEADY_EXTRA
    timer = threading.Timer(limit, lambda: finish(f"FAIL timeout after {limit}s, {ledger}", 1))
    timer.daemon = True
    timer.start()
    return args, ledger


def check_complete(ledger):
    missing = ledger.missing()
    if missing:
        raise Failure(f"{len(missing)} acknowledged records were not consumed, first {missing[0]}, {ledger}")


def main(library):
    args, ledger = start()
    try:
        if args.mode == "bootstraps":
            finish(bootstraps(library, args), 0)
        log(f"topic {args.topic}: {library.create(args)}")
        time.sleep(SETTLE)
        (once if args.mode == "once" else steady)(library, args, ledger)
    except Exception as e:  # any exception is the application's failure
        finish(f"FAIL {describe(e)}", 1)
    finish(f"OK {ledger}", 0)


def describe(e):
    text, name = " ".join(str(e).split()), type(e).__name__
    return text if isinstance(e, Failure) or text.startswith(name) else f"{name}: {text}"


def once(library, args, ledger):
    producer = library.Producer(args)
    failures = []

    def sent(n, error):
        if error is None:
            ledger.ack(n)
        else:
            failures.append(error)

    for n in range(args.count):
        producer.send(*ledger.record(n), lambda error, n=n: sent(n, error))
    while len(ledger.acked) < args.count:
        if failures:
            raise Failure(f"produce: {failures[0]}")
        producer.pump()
    producer.close()
    log(f"produced {args.count}")
    consumer = library.Consumer(args)
    while ledger.missing():
        for key, value in consumer.poll():
            ledger.see(key, value)
    consumer.close()


def steady(library, args, ledger):
    """Produces and consumes side by side for args.seconds, whatever happens to the
    brokers, then checks that every acknowledged record came back."""
    stop, wrong = threading.Event(), []
    reader = threading.Thread(target=consume, args=(library.Consumer(args), ledger, stop, wrong), daemon=True)
    reader.start()
    end = produce(library.Producer(args), ledger, args.seconds)
    deadline = end + DRAIN_LIMIT
    while ledger.missing() and not wrong and time.monotonic() < deadline:
        time.sleep(SEND_EVERY)
    if wrong:
        raise wrong[0]
    check_complete(ledger)
    stop.set()
    reader.join(10)


def produce(producer, ledger, seconds):
    """Sends for seconds and waits for the answers; returns when the last record was sent."""
    pending = set()

    def sent(n, error):
        if error is None:
            ledger.ack(n)
        else:
            ledger.failed(f"send {n}: {error}")
        pending.discard(n)

    begin = time.monotonic()
    n = 0
    while time.monotonic() - begin < seconds:
        pending.add(n)
        try:
            producer.send(*ledger.record(n), lambda error, n=n: sent(n, error))
        except Exception as e:
            sent(n, describe(e))
        producer.pump()
        n += 1
        time.sleep(max(0, begin + n * SEND_EVERY - time.monotonic()))
    end = time.monotonic()
    while pending and time.monotonic() < end + FLUSH_LIMIT:
        producer.pump()
        time.sleep(0.01)
    if pending:
        ledger.failed(f"{len(pending)} sends got no answer within {FLUSH_LIMIT}s")
    else:
        producer.close()
    return end


def consume(consumer, ledger, stop, wrong):
    """Reads until stop; an error of the library is counted, a wrong record ends the job."""
    while not stop.is_set():
        try:
            for key, value in consumer.poll():
                ledger.see(key, value)
        except Failure as e:
            wrong.append(e)
            return
        except Exception as e:
            ledger.failed(f"consume: {describe(e)}")
            time.sleep(SETTLE)
    consumer.close()


def bootstraps(library, args):
    """Starts a fresh client every second; the caller judges how many may fail."""
    failed = []

    def one(n):
        begin = time.monotonic()
        try:
            library.list_topics(args, LIST_LIMIT)
        except Exception as e:
            failed.append(n)
            log(f"error: bootstrap {n} after {time.monotonic() - begin:.3f}s: {describe(e)}")

    threads = []
    for n in range(args.seconds):
        threads.append(threading.Thread(target=one, args=(n,), daemon=True))
        threads[-1].start()
        time.sleep(1)
    for thread in threads:
        thread.join()
    return f"OK started={len(threads)} failed={len(failed)}"
