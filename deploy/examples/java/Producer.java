import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.PrivateKey;
import java.security.Signature;
import java.security.spec.PKCS8EncodedKeySpec;
import java.time.Duration;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

import static java.nio.charset.StandardCharsets.UTF_8;

/**
 * A batch producer of Sluice in Java 17: signs jobs, puts them on Kafka, and handles their results.
 *
 *   mvn -q dependency:copy-dependencies
 *   KAFKA=… INTAKE=… RESULTS=… TENANT=… KEY_ID=… KEY_FILE=… GROUP_PREFIX=… \
 *     java -cp 'target/dependency/*' Producer.java "What is the capital of France?"
 *   java -cp 'target/dependency/*' Producer.java --vectors ../../../docs/schemas/job_signature_vectors.json
 *
 * It needs nothing of Sluice: the signature is described in docs/producers.md, what is written and read in
 * docs/schemas/job.json and result.json.
 */
public class Producer {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Duration LIFETIME = Duration.ofMinutes(10), PATIENCE = Duration.ofMinutes(2);

    /** The label, five texts and the value, each behind its length in bytes. */
    static byte[] signedBytes(
            String topic, String tenant, String keyId, String customId, String expiresMs, byte[] value)
            throws Exception {
        var bytes = new ByteArrayOutputStream();
        var signed = new DataOutputStream(bytes); // big-endian
        for (String text : List.of("sluice-job-v1", topic, tenant, keyId, customId, expiresMs)) {
            signed.writeInt(text.getBytes(UTF_8).length);
            signed.write(text.getBytes(UTF_8));
        }
        signed.writeInt(value.length);
        signed.write(value);
        return bytes.toByteArray();
    }

    /** Sign a record's value as it will be sent. */
    static Map<String, String> headers(
            PrivateKey key, String topic, String tenant, String keyId, String customId, String expiresMs, byte[] value)
            throws Exception {
        var signature = Signature.getInstance("Ed25519");
        signature.initSign(key);
        signature.update(signedBytes(topic, tenant, keyId, customId, expiresMs, value));
        return new TreeMap<>(Map.of(
                "sluice-tenant", tenant, "sluice-key-id", keyId, "sluice-custom-id", customId,
                "sluice-expires-ms", expiresMs,
                "sluice-signature", Base64.getEncoder().encodeToString(signature.sign())));
    }

    static PrivateKey privateKey(byte[] der) throws Exception {
        return KeyFactory.getInstance("Ed25519").generatePrivate(new PKCS8EncodedKeySpec(der));
    }

    /** Makes every published vector anew. */
    static void checkVectors(File file) throws Exception {
        JsonNode cases = JSON.readTree(file).get("cases");
        for (JsonNode c : cases) {
            String topic = c.get("topic").asText(), tenant = c.get("tenant_id").asText();
            String keyId = c.get("key_id").asText(), customId = c.get("custom_id").asText();
            String expiresMs = c.get("expires_ms").asText();
            byte[] value = c.get("value_base64").binaryValue();
            byte[] signed = signedBytes(topic, tenant, keyId, customId, expiresMs, value);
            if (!Arrays.equals(signed, c.get("signed_bytes_base64").binaryValue()))
                throw new IllegalStateException(c.get("name") + ": other bytes are signed");
            PrivateKey key = privateKey(c.get("private_key_pkcs8_base64").binaryValue());
            if (!headers(key, topic, tenant, keyId, customId, expiresMs, value)
                    .equals(JSON.convertValue(c.get("headers"), Map.class)))
                throw new IllegalStateException(c.get("name") + ": another signature");
        }
        System.out.println(cases.size() + " vectors agree");
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 2 && arguments[0].equals("--vectors")) {
            checkVectors(new File(arguments[1]));
            return;
        }
        Map<String, String> env = System.getenv();
        String pem = Files.readString(Path.of(env.get("KEY_FILE"))).replaceAll("-----[A-Z ]+-----|\\s", "");
        PrivateKey key = privateKey(Base64.getDecoder().decode(pem));
        // One group for as long as there is the application: who comes back goes on behind what was handled.
        Map<String, Object> reading = Map.of(
                "bootstrap.servers", env.get("KAFKA"),
                "group.id", env.getOrDefault("GROUP_PREFIX", "") + "java-example",
                "auto.offset.reset", "earliest", "enable.auto.commit", false, "session.timeout.ms", 6000,
                "heartbeat.interval.ms", 2000, "isolation.level", "read_committed");
        Map<String, Object> writing = Map.of(
                "bootstrap.servers", env.get("KAFKA"), "acks", "all", "enable.idempotence", true);
        Set<String> waiting = new HashSet<>();
        try (var producer = new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (String prompt : arguments) {
                Object body = Map.of(
                        "model", "default", "max_tokens", 64,
                        "messages", List.of(Map.of("role", "user", "content", prompt)));
                byte[] value = JSON.writeValueAsBytes(Map.of("schema_version", 1, "type", "job", "body", body));
                String customId = "java-" + UUID.randomUUID(), intake = env.get("INTAKE");
                String expiresMs = Long.toString(System.currentTimeMillis() + LIFETIME.toMillis());
                var record = new ProducerRecord<>(intake, customId.getBytes(UTF_8), value);
                headers(key, intake, env.get("TENANT"), env.get("KEY_ID"), customId, expiresMs, value)
                        .forEach((name, text) -> record.headers().add(name, text.getBytes(UTF_8)));
                producer.send(record).get(); // not sure whether it arrived? send it again, with its id
                waiting.add(customId);
            }
        }
        Set<String> seen = new HashSet<>();
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        try (var consumer = new KafkaConsumer<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(env.get("RESULTS")));
            while (!waiting.isEmpty()) {
                if (System.nanoTime() > deadline) throw new IllegalStateException("no result in time: " + waiting);
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    JsonNode line = JSON.readTree(record.value());
                    String customId = line.get("custom_id").asText();
                    if (customId.startsWith("java-") && seen.add(line.get("id").asText())) // written at least once
                        System.out.println(customId + ": " + (line.get("error").isNull()
                                ? line.at("/response/body/choices/0/message/content").asText()
                                : line.at("/error/code").asText() + ": " + line.at("/error/message").asText()));
                    waiting.remove(customId);
                }
                consumer.commitSync(); // behind what was handled
            }
        }
    }
}
