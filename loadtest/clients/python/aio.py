"""The client job with aiokafka: job.py's contract, told in asyncio."""

import asyncio
import time

import job
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient


async def main(args, ledger):
    if args.mode == "bootstraps":
        return await bootstraps(args)
    async with AIOKafkaProducer(bootstrap_servers=args.bootstrap, acks="all") as producer:
        await producer.partitions_for(args.topic)
        job.log(f"topic {args.topic}: created or found by the producer's Metadata")
        await asyncio.sleep(job.SETTLE)
        await (once if args.mode == "once" else steady)(args, ledger, producer)
    return f"OK {ledger}"


def new_consumer(args):
    return AIOKafkaConsumer(args.topic, bootstrap_servers=args.bootstrap, group_id=args.group, auto_offset_reset="earliest")


async def send(args, ledger, producer, n):
    key, value = ledger.record(n)
    await producer.send_and_wait(args.topic, value, key)
    ledger.ack(n)


async def read(consumer, ledger):
    for records in (await consumer.getmany(timeout_ms=500)).values():
        for r in records:
            ledger.see(r.key, r.value)


async def once(args, ledger, producer):
    await asyncio.gather(*(send(args, ledger, producer, n) for n in range(args.count)))
    job.log(f"produced {args.count}")
    async with new_consumer(args) as consumer:
        while ledger.missing():
            await read(consumer, ledger)


async def steady(args, ledger, producer):
    stop = asyncio.Event()
    reader = asyncio.create_task(consume(args, ledger, stop))

    async def counted(n):
        try:
            await send(args, ledger, producer, n)
        except Exception as e:
            ledger.failed(f"send {n}: {job.describe(e)}")

    begin, sends = time.monotonic(), []
    while time.monotonic() - begin < args.seconds:
        sends.append(asyncio.create_task(counted(len(sends))))
        await asyncio.sleep(max(0, begin + len(sends) * job.SEND_EVERY - time.monotonic()))
    deadline = time.monotonic() + job.DRAIN_LIMIT
    _, pending = await asyncio.wait(sends, timeout=job.FLUSH_LIMIT)
    if pending:
        ledger.failed(f"{len(pending)} sends got no answer within {job.FLUSH_LIMIT}s")
    while ledger.missing() and not reader.done() and time.monotonic() < deadline:
        await asyncio.sleep(job.SEND_EVERY)
    stop.set()
    await reader
    job.check_complete(ledger)


async def consume(args, ledger, stop):
    async with new_consumer(args) as consumer:
        while not stop.is_set():
            try:
                await read(consumer, ledger)
            except job.Failure:
                raise
            except Exception as e:
                ledger.failed(f"consume: {job.describe(e)}")
                await asyncio.sleep(job.SETTLE)


async def bootstraps(args):
    failed = []

    async def one(n):
        begin = time.monotonic()
        admin = AIOKafkaAdminClient(bootstrap_servers=args.bootstrap)
        try:
            async with asyncio.timeout(job.LIST_LIMIT):
                await admin.start()
                await admin.list_topics()
        except Exception as e:
            failed.append(n)
            job.log(f"error: bootstrap {n} after {time.monotonic() - begin:.3f}s: {job.describe(e)}")
        finally:
            await admin.close()

    tasks = []
    for n in range(args.seconds):
        tasks.append(asyncio.create_task(one(n)))
        await asyncio.sleep(1)
    await asyncio.gather(*tasks)
    return f"OK started={len(tasks)} failed={len(failed)}"


if __name__ == "__main__":
    args, ledger = job.start()
    try:
        verdict = asyncio.run(main(args, ledger))
    except Exception as e:
        job.finish(f"FAIL {job.describe(e)}", 1)
    job.finish(verdict, 0)
