import java.util.Properties;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What differs between releases of kafka-clients: before 2.0. */
final class Release {
    private Release() {}

    /** No delivery timeout yet, and no retries unless told so: with retry.backoff.ms = 100, two minutes. */
    static void tuneProducer(Properties properties) {
        properties.put("retries", 1200);
    }

    static ConsumerRecords<String, String> poll(Consumer<String, String> consumer) {
        return consumer.poll(500);
    }

    /** 0.10 has no admin client: the producer's Metadata makes the topic. */
    static String create(String bootstrap, String topic) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            producer.partitionsFor(topic);
        }
        return "created or found by a producer's Metadata";
    }

    static void listTopics(String bootstrap, int timeoutMs) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("request.timeout.ms", timeoutMs);
        properties.put("session.timeout.ms", timeoutMs - 1);
        properties.put("fetch.max.wait.ms", 500);
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            consumer.listTopics();
        }
    }
}
