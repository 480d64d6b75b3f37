"""The client job with confluent-kafka (librdkafka)."""

import time

import job
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient


def create(args):
    """A producer's Metadata makes the topic; the first answers name it without a leader."""
    producer = KafkaProducer({"bootstrap.servers": args.bootstrap})
    while True:
        topic = producer.list_topics(args.topic, timeout=10).topics[args.topic]
        if topic.error is None and topic.partitions:
            return "created or found by a producer's Metadata"
        time.sleep(0.1)


class Producer:
    def __init__(self, args):
        self.topic = args.topic
        # The default message.timeout.ms is 5 minutes; two are the other libraries' delivery timeout.
        self.producer = KafkaProducer({"bootstrap.servers": args.bootstrap, "acks": "all", "message.timeout.ms": 120000})

    def send(self, key, value, done):
        self.producer.produce(self.topic, value, key, on_delivery=lambda error, _: done(error and str(error)))

    def pump(self):
        self.producer.poll(0.02)

    def close(self):
        self.producer.flush(10)


class Consumer:
    def __init__(self, args):
        self.consumer = KafkaConsumer({
            "bootstrap.servers": args.bootstrap,
            "group.id": args.group,
            "auto.offset.reset": "earliest",
        })
        self.consumer.subscribe([args.topic])

    def poll(self):
        message = self.consumer.poll(0.5)
        if message is None:
            return []
        if message.error():
            if message.error().code() == KafkaError._PARTITION_EOF:
                return []
            raise KafkaException(message.error())
        return [(message.key(), message.value())]

    def close(self):
        self.consumer.close()


def list_topics(args, timeout):
    AdminClient({"bootstrap.servers": args.bootstrap}).list_topics(timeout=timeout)


if __name__ == "__main__":
    import sys

    job.main(sys.modules[__name__])
