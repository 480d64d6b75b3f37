import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Phaser;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The client job with the Apache Java client, from 0.10.2 to 4.4: only what every release has is used here, the rest is
 * in Release. The contract (flags, modes, last line, exit code) is the one that loadtest/clients/README.md gives for
 * every language.
 */
public final class Job {
    private static final int SEND_EVERY_MS = 50; // steady: from one record to the next
    private static final int SETTLE_MS = 500; // a new topic takes a moment to reach every broker
    private static final int ONCE_LIMIT_S = 60; // once: the whole program
    private static final int STEADY_EXTRA_S = 90; // steady and bootstraps: beyond --seconds
    private static final int FLUSH_LIMIT_S = 45; // steady: from the last send to its answer
    private static final int DRAIN_LIMIT_S = 80; // steady: from the last send to the last record back
    private static final int LIST_LIMIT_MS = 10_000; // bootstraps: one client, from start to topic list

    private final String bootstrap;
    private final String topic;
    private final String group;
    private final String mode;
    private final int count;
    private final int seconds;
    private final Map<String, String> consumerSettings = new HashMap<>();
    private final Ledger ledger = new Ledger();

    private Job(String[] args) {
        Map<String, String> flags = new HashMap<>();
        for (int i = 0; i + 1 < args.length; i += 2) {
            if (args[i].equals("--consumer")) { // a consumer setting, name=value
                String[] setting = args[i + 1].split("=", 2);
                consumerSettings.put(setting[0], setting[1]);
            } else {
                flags.put(args[i], args[i + 1]);
            }
        }
        bootstrap = flags.get("--bootstrap");
        topic = flags.getOrDefault("--topic", "");
        group = flags.getOrDefault("--group", topic + "-" + System.nanoTime());
        mode = flags.getOrDefault("--mode", "once");
        count = Integer.parseInt(flags.getOrDefault("--count", "20"));
        seconds = Integer.parseInt(flags.getOrDefault("--seconds", "30"));
        if (bootstrap == null || (topic.isEmpty() && !mode.equals("bootstraps"))) {
            throw new IllegalArgumentException("--bootstrap HOST:PORT and --topic NAME are required");
        }
    }

    public static void main(String[] args) {
        try {
            finish("OK " + new Job(args).run(), 0);
        } catch (Throwable e) {
            finish("FAIL " + describe(e), 1);
        }
    }

    /** Prints the one last line and ends the process, whatever its threads do. */
    private static synchronized void finish(String line, int code) {
        System.out.println(line);
        System.out.flush();
        Runtime.getRuntime().halt(code);
    }

    private static String describe(Throwable e) {
        return String.valueOf(e).replaceAll("\\s+", " ");
    }

    private String run() throws Exception {
        int limit = mode.equals("once") ? ONCE_LIMIT_S : seconds + STEADY_EXTRA_S;
        daemon(() -> {
            TimeUnit.SECONDS.sleep(limit);
            finish("FAIL timeout after " + limit + "s, " + figures(), 1);
        });
        switch (mode) {
            case "once":
                once();
                return figures();
            case "steady":
                steady();
                return figures();
            case "bootstraps":
                return bootstraps();
            default:
                throw new IllegalArgumentException("--mode " + mode + ": want once, steady or bootstraps");
        }
    }

    private String figures() {
        return ledger.figures() + (mode.equals("steady") ? " errors=" + ledger.errors() : "");
    }

    private interface Task {
        void run() throws Exception;
    }

    private static void daemon(Task task) {
        Thread thread = new Thread(() -> {
            try {
                task.run();
            } catch (Throwable e) {
                finish("FAIL " + describe(e), 1);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private void create() throws Exception {
        System.out.println("topic " + topic + ": " + Release.create(bootstrap, topic));
        Thread.sleep(SETTLE_MS);
    }

    private Producer<String, String> producer() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("acks", "all");
        Release.tuneProducer(properties);
        return new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
    }

    private Consumer<String, String> consumer() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.id", group);
        properties.put("auto.offset.reset", "earliest");
        properties.putAll(consumerSettings);
        Consumer<String, String> consumer =
                new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(Collections.singletonList(topic));
        return consumer;
    }

    private void see(Consumer<String, String> consumer) {
        for (ConsumerRecord<String, String> record : Release.poll(consumer)) {
            ledger.see(record.key(), record.value());
        }
    }

    private void once() throws Exception {
        create();
        try (Producer<String, String> producer = producer()) {
            List<Future<?>> sends = new ArrayList<>();
            for (int n = 0; n < count; n++) {
                sends.add(producer.send(new ProducerRecord<>(topic, ledger.key(n), ledger.value(n))));
            }
            for (int n = 0; n < count; n++) {
                sends.get(n).get();
                ledger.ack(n);
            }
        }
        System.out.println("produced " + count);
        try (Consumer<String, String> consumer = consumer()) {
            while (!ledger.missing().isEmpty()) {
                see(consumer);
            }
        }
    }

    /**
     * Produces and consumes side by side for the given seconds, whatever happens to the brokers, then checks that every
     * acknowledged record came back.
     */
    private void steady() throws Exception {
        create();
        AtomicBoolean stop = new AtomicBoolean();
        daemon(() -> consume(stop));
        long end = produce();
        while (!ledger.missing().isEmpty() && System.nanoTime() - end < TimeUnit.SECONDS.toNanos(DRAIN_LIMIT_S)) {
            Thread.sleep(SEND_EVERY_MS);
        }
        stop.set(true);
        List<Integer> missing = ledger.missing();
        if (!missing.isEmpty()) {
            throw new IllegalStateException(missing.size() + " acknowledged records were not consumed, first "
                    + missing.get(0) + ", " + figures());
        }
    }

    /** Sends for the given seconds and waits for the answers; returns when the last record was sent (System.nanoTime). */
    private long produce() throws Exception {
        Producer<String, String> producer = producer();
        Phaser inFlight = new Phaser(1);
        long begin = System.nanoTime();
        for (int n = 0; System.nanoTime() - begin < TimeUnit.SECONDS.toNanos(seconds); n++) {
            int number = n;
            inFlight.register();
            try {
                producer.send(new ProducerRecord<>(topic, ledger.key(n), ledger.value(n)), (metadata, error) -> {
                    if (error == null) {
                        ledger.ack(number);
                    } else {
                        ledger.failed("send " + number, error);
                    }
                    inFlight.arriveAndDeregister();
                });
            } catch (RuntimeException e) {
                ledger.failed("send " + number, e);
                inFlight.arriveAndDeregister();
            }
            long next = begin + TimeUnit.MILLISECONDS.toNanos((long) SEND_EVERY_MS * (n + 1));
            TimeUnit.NANOSECONDS.sleep(next - System.nanoTime());
        }
        long end = System.nanoTime();
        try {
            inFlight.awaitAdvanceInterruptibly(inFlight.arrive(), FLUSH_LIMIT_S, TimeUnit.SECONDS);
        } catch (TimeoutException e) {
            ledger.failed("some sends got no answer", e);
        }
        return end;
    }

    /** Reads until stop; an exception of the library is counted, a wrong record ends the job. */
    private void consume(AtomicBoolean stop) throws Exception {
        try (Consumer<String, String> consumer = consumer()) {
            while (!stop.get()) {
                try {
                    see(consumer);
                } catch (Ledger.WrongRecord e) {
                    throw e;
                } catch (RuntimeException e) {
                    ledger.failed("consume", e);
                    Thread.sleep(SETTLE_MS);
                }
            }
        }
    }

    /** Starts a fresh client every second; the caller judges how many may fail. */
    private String bootstraps() throws Exception {
        AtomicInteger failed = new AtomicInteger();
        ExecutorService clients = Executors.newCachedThreadPool();
        for (int n = 0; n < seconds; n++) {
            int number = n;
            clients.execute(() -> {
                long begin = System.nanoTime();
                try {
                    Release.listTopics(bootstrap, LIST_LIMIT_MS);
                } catch (Exception e) {
                    failed.incrementAndGet();
                    System.out.println("error: bootstrap " + number + " after "
                            + TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begin) + " ms: " + describe(e));
                }
            });
            Thread.sleep(1000);
        }
        clients.shutdown();
        clients.awaitTermination(STEADY_EXTRA_S, TimeUnit.SECONDS);
        return "started=" + seconds + " failed=" + failed.get();
    }
}
