"""The client job with kafka-python, the same for 2.0 and 3.0."""

import time

import job
import kafka

OLD = kafka.__version__.startswith("2.")


def create(args):
    producer = kafka.KafkaProducer(bootstrap_servers=args.bootstrap)
    producer.partitions_for(args.topic)
    producer.close(timeout=10)
    return "created or found by a producer's Metadata"


class Producer:
    def __init__(self, args):
        self.topic = args.topic
        # 2.0 has no delivery timeout and does not retry unless told so: with 100 ms between tries, two minutes.
        retries = {"retries": 1200} if OLD else {}
        self.producer = kafka.KafkaProducer(bootstrap_servers=args.bootstrap, acks="all", **retries)

    def send(self, key, value, done):
        future = self.producer.send(self.topic, value, key)
        future.add_callback(lambda _: done(None))
        future.add_errback(lambda error: done(job.describe(error)))

    def pump(self):
        time.sleep(0.005)  # the library's own thread does the work

    def close(self):
        self.producer.close(timeout=10)


class Consumer:
    def __init__(self, args):
        self.consumer = kafka.KafkaConsumer(
            args.topic,
            bootstrap_servers=args.bootstrap,
            group_id=args.group,
            auto_offset_reset="earliest",
        )

    def poll(self):
        batches = self.consumer.poll(timeout_ms=500)
        return [(r.key, r.value) for records in batches.values() for r in records]

    def close(self):
        self.consumer.close()


def list_topics(args, timeout):
    """The constructor raises when no broker answers: after 2 s in 2.0."""
    limit = {} if OLD else {"bootstrap_timeout_ms": timeout * 1000}
    consumer = kafka.KafkaConsumer(bootstrap_servers=args.bootstrap, **limit)
    try:
        consumer.topics()
    finally:
        consumer.close()


if __name__ == "__main__":
    import sys

    job.main(sys.modules[__name__])
