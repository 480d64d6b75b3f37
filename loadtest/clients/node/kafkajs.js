// The client job with kafkajs. The contract (flags, modes, last line, exit
// code) is the one that loadtest/clients/README.md gives for every language.
'use strict'

const { randomBytes } = require('node:crypto')
const { parseArgs } = require('node:util')
const { setTimeout: sleep } = require('node:timers/promises')
const { Kafka, logLevel } = require('kafkajs')

const SEND_EVERY = 50 // steady: ms from one record to the next
const SETTLE = 500 // a new topic takes a moment to reach every broker, ms
const ONCE_LIMIT = 60 // once: the whole program, s
const STEADY_EXTRA = 90 // steady and bootstraps: beyond --seconds
const FLUSH_LIMIT = 45000 // steady: from the last send to its answer, ms
const DRAIN_LIMIT = 80000 // steady: from the last send to the last record back, ms
const LIST_LIMIT = 10000 // bootstraps: one client, from start to topic list, ms

const { values: args } = parseArgs({
  options: {
    bootstrap: { type: 'string' }, // the one bootstrap address, host:port
    topic: { type: 'string', default: '' },
    group: { type: 'string', default: '' }, // consumer group (default: one of its own)
    mode: { type: 'string', default: 'once' }, // once, steady or bootstraps
    count: { type: 'string', default: '20' }, // once: records to produce and consume
    seconds: { type: 'string', default: '30' }, // steady, bootstraps: how long
  },
})
const count = Number(args.count)
const seconds = Number(args.seconds)
const topic = args.topic
const group = args.group || `${topic}-${Date.now()}`

// Who was acknowledged and who came back. Every record carries the run's own
// mark, so records of other runs on the same topic are passed over.
const run = randomBytes(6).toString('hex')
const acked = new Set()
const seen = new Set()
let errors = 0

// Neighbours differ in length and content, so a mix-up shows.
const record = n => ({ key: `${n}`, value: `${run}/${n}/${'x'.repeat(n % 64)}` })
const missing = () => [...acked].filter(n => !seen.has(n))
const figures = () =>
  `produced=${acked.size} consumed=${seen.size}` + (args.mode === 'steady' ? ` errors=${errors}` : '')

function see(key, value) {
  if (!value.startsWith(`${run}/`)) return
  const n = Number(value.split('/')[1])
  if (record(n).key !== key || record(n).value !== value) {
    finish(`FAIL record differs from what was sent: key ${key}, value ${value}`, 1)
  }
  seen.add(n)
}

// Counts an error that the application saw.
function failed(what, error) {
  errors++
  console.log(`error: ${what}: ${error.message}`)
}

function finish(line, code) {
  process.stdout.write(`${line}\n`, () => process.exit(code))
}

// More patient than kafkajs's own 5 tries, about 10 s, as a killed broker stays in Metadata for 9 s: two minutes. Waits
// between tries would grow to 30 s, longer than a cluster takes to recover.
const retry = { retries: 45, maxRetryTime: 3000 }
const kafka = new Kafka({ brokers: [args.bootstrap], logLevel: logLevel.ERROR, retry })

async function create() {
  const admin = kafka.admin()
  await admin.connect()
  // waitForLeaders would throw when a broker is asked that has not heard of the topic yet. Without numbers the topic
  // gets the brokers' own number of partitions and replicas.
  const made = await admin.createTopics({ topics: [{ topic }], waitForLeaders: false })
  await sleep(SETTLE)
  for (let tries = 0; ; tries++) {
    try {
      await admin.fetchTopicMetadata({ topics: [topic] })
      break
    } catch (error) {
      if (error.type !== 'UNKNOWN_TOPIC_OR_PARTITION' || tries === 20) throw error
    }
    await sleep(SETTLE)
  }
  await admin.disconnect()
  console.log(`topic ${topic}: ${made ? 'created' : 'found'} by the admin client`)
}

async function newProducer() {
  const producer = kafka.producer()
  await producer.connect()
  return producer
}

async function startConsumer() {
  const consumer = kafka.consumer({
    groupId: group,
    maxWaitTimeInMs: 500, // default 5 s, which disconnect() waits for
    sessionTimeout: 10000, // default 30 s: how long a consumer that restarts itself waits for its own former self
  })
  // kafkajs restarts it by itself after most errors, unseen by the application.
  consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || failed('consumer crashed', payload.error))
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({ eachMessage: async ({ message }) => see(`${message.key}`, `${message.value}`) })
  return consumer
}

async function send(producer, n) {
  await producer.send({ topic, acks: -1, messages: [record(n)] })
  acked.add(n)
}

async function once() {
  await create()
  const producer = await newProducer()
  await Promise.all(Array.from({ length: count }, (_, n) => send(producer, n)))
  await producer.disconnect()
  console.log(`produced ${count}`)
  const consumer = await startConsumer()
  while (missing().length > 0) await sleep(20)
  if (errors > 0) throw new Error('the consumer crashed')
  await consumer.disconnect()
}

// Produces and consumes side by side, whatever happens to the brokers, then
// checks that every acknowledged record came back.
async function steady() {
  await create()
  const producer = await newProducer()
  const consumer = await startConsumer()
  const begin = Date.now()
  const sends = []
  while (Date.now() - begin < seconds * 1000) {
    const n = sends.length
    sends.push(send(producer, n).catch(error => failed(`send ${n}`, error)))
    await sleep(Math.max(0, begin + sends.length * SEND_EVERY - Date.now()))
  }
  const deadline = Date.now() + DRAIN_LIMIT
  const answered = await Promise.race([Promise.all(sends), sleep(FLUSH_LIMIT)])
  if (!answered) failed('flush', new Error(`some sends got no answer within ${FLUSH_LIMIT} ms`))
  while (missing().length > 0 && Date.now() < deadline) await sleep(SEND_EVERY)
  const lost = missing()
  if (lost.length > 0) {
    throw new Error(`${lost.length} acknowledged records were not consumed, first ${lost[0]}, ${figures()}`)
  }
  await Promise.race([Promise.all([consumer.disconnect(), producer.disconnect()]), sleep(5000)])
}

// Starts a fresh client every second; the caller judges how many may fail.
async function bootstraps() {
  let bad = 0
  const one = async n => {
    const begin = Date.now()
    const admin = new Kafka({ brokers: [args.bootstrap], logLevel: logLevel.NOTHING }).admin()
    const list = async () => {
      await admin.connect()
      await admin.listTopics()
    }
    const late = sleep(LIST_LIMIT).then(() => Promise.reject(new Error('timeout')))
    try {
      await Promise.race([list(), late])
    } catch (error) {
      bad++
      console.log(`error: bootstrap ${n} after ${Date.now() - begin} ms: ${error.message}`)
    }
    late.catch(() => {})
    admin.disconnect().catch(() => {})
  }
  const clients = []
  for (let n = 0; n < seconds; n++) {
    clients.push(one(n))
    await sleep(1000)
  }
  await Promise.all(clients)
  return `started=${clients.length} failed=${bad}`
}

async function main() {
  const job = { once, steady, bootstraps }[args.mode]
  if (!job || !args.bootstrap || (!topic && args.mode !== 'bootstraps')) {
    throw new Error('usage: --bootstrap HOST:PORT --topic NAME [--group G] [--mode once|steady|bootstraps] [--count N] [--seconds N]')
  }
  const limit = args.mode === 'once' ? ONCE_LIMIT : seconds + STEADY_EXTRA
  setTimeout(() => finish(`FAIL timeout after ${limit}s, ${figures()}`, 1), limit * 1000)
  return (await job()) || figures()
}

main().then(
  line => finish(`OK ${line}`, 0),
  error => finish(`FAIL ${error.message}`, 1),
)
