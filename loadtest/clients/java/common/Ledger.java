import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;

/**
 * Who was acknowledged and who came back. Every record carries the run's own mark, so records of other runs on the same
 * topic are passed over.
 */
final class Ledger {
    private final String run = UUID.randomUUID().toString().substring(0, 13);
    private final Set<Integer> acked = new TreeSet<>();
    private final Set<Integer> seen = new TreeSet<>();
    private int errors;

    @SuppressWarnings("serial")
    static final class WrongRecord extends RuntimeException {
        WrongRecord(String key, String value) {
            super("record differs from what was sent: key " + key + ", value " + value);
        }
    }

    String key(int n) {
        return Integer.toString(n);
    }

    /** Neighbours differ in length and content, so a mix-up shows. */
    String value(int n) {
        StringBuilder value = new StringBuilder(run + "/" + n + "/");
        for (int i = 0; i < n % 64; i++) {
            value.append('x');
        }
        return value.toString();
    }

    synchronized void ack(int n) {
        acked.add(n);
    }

    synchronized void see(String key, String value) {
        if (!value.startsWith(run + "/")) {
            return;
        }
        int n;
        try {
            n = Integer.parseInt(value.split("/")[1]);
        } catch (NumberFormatException e) {
            throw new WrongRecord(key, value);
        }
        if (!key(n).equals(key) || !value(n).equals(value)) {
            throw new WrongRecord(key, value);
        }
        seen.add(n);
    }

    /** Counts an error that the application saw. */
    synchronized void failed(String what, Throwable error) {
        errors++;
        System.out.println("error: " + what + ": " + error);
    }

    /** The acknowledged records that have not come back, in order. */
    synchronized List<Integer> missing() {
        List<Integer> missing = new ArrayList<>(acked);
        missing.removeAll(seen);
        return missing;
    }

    synchronized int errors() {
        return errors;
    }

    synchronized String figures() {
        return "produced=" + acked.size() + " consumed=" + seen.size();
    }
}
