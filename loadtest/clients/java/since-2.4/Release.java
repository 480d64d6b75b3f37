import java.time.Duration;
import java.util.Collections;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.common.errors.TopicExistsException;

/** What differs between releases of kafka-clients: from 2.4 on. */
final class Release {
    private Release() {}

    static void tuneProducer(Properties properties) {}

    static ConsumerRecords<String, String> poll(Consumer<String, String> consumer) {
        return consumer.poll(Duration.ofMillis(500));
    }

    /** Makes or finds the topic, with the brokers' own number of partitions and replicas. */
    static String create(String bootstrap, String topic) throws Exception {
        try (AdminClient admin = admin(bootstrap, 60_000)) {
            admin.createTopics(Collections.singleton(new NewTopic(topic, Optional.empty(), Optional.empty()))).all().get();
            return "created by the admin client";
        } catch (ExecutionException e) {
            if (e.getCause() instanceof TopicExistsException) {
                return "found by the admin client";
            }
            throw e;
        }
    }

    static void listTopics(String bootstrap, int timeoutMs) throws Exception {
        try (AdminClient admin = admin(bootstrap, timeoutMs)) {
            admin.listTopics().names().get();
        }
    }

    private static AdminClient admin(String bootstrap, int timeoutMs) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("default.api.timeout.ms", timeoutMs);
        properties.put("request.timeout.ms", Math.min(timeoutMs, 30_000));
        return AdminClient.create(properties);
    }
}
