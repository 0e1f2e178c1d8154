// ClickHouse's JDBC driver: questions to its interface, and what tools with menus of tables ask of a connection.

import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.Date;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Timestamp;
import java.sql.Types;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;

class ClickHouseJdbc {
    interface Ability {
        Object see() throws Exception;
    }

    static Connection connected(String... more) throws SQLException {
        Properties told = new Properties();
        told.put("user", System.getenv("CLICKHOUSE_USER"));
        told.put("password", System.getenv("CLICKHOUSE_KEY"));
        for (int at = 0; at < more.length; at += 2) {
            told.put(more[at], more[at + 1]);
        }
        return DriverManager.getConnection("jdbc:clickhouse:" + System.getenv("CLICKHOUSE_URL") + "/sluice", told);
    }

    static Object connects() throws SQLException {
        try (Connection connection = connected()) {
            return List.of(connection.isValid(30), connection.getMetaData().getDatabaseProductName().equals("ClickHouse"));
        }
    }

    static Object asks() throws SQLException {
        String text = "SELECT model, sum(output_tokens), sum(cost), NULL, toDate(min(accepted_at)) FROM usage"
            + " WHERE tenant_id = ? AND choice = ? AND accepted_at < ? AND cost < ? GROUP BY model";
        try (Connection connection = connected(); PreparedStatement asked = connection.prepareStatement(text)) {
            asked.setString(1, "acme");
            asked.setInt(2, 0);
            asked.setTimestamp(3, new Timestamp(System.currentTimeMillis()));
            asked.setBigDecimal(4, new BigDecimal("12.50"));
            asked.setQueryTimeout(3600);
            try (ResultSet rows = asked.executeQuery()) {
                rows.next();
                BigDecimal cost = rows.getBigDecimal(3).stripTrailingZeros();
                Date day = rows.getDate(5);
                return listed(rows.getString(1), rows.getLong(2), cost.toPlainString(), rows.getObject(4), day.toString());
            }
        }
    }

    // Values of each kind come back as they were put in.
    static Object binds() throws SQLException {
        try (Connection connection = connected(); PreparedStatement asked = connection.prepareStatement("SELECT ?, ?, ?, ?")) {
            asked.setString(1, "it's \\ a {brace:Int8}\n?");
            asked.setBigDecimal(2, new BigDecimal("-1.25"));
            asked.setTimestamp(3, Timestamp.valueOf("2025-01-02 03:04:05"));
            asked.setNull(4, Types.VARCHAR);
            try (ResultSet row = asked.executeQuery()) {
                row.next();
                return listed(row.getString(1), row.getString(2), row.getTimestamp(3).toString(), row.getString(4), row.wasNull());
            }
        }
    }

    static Object summed(String... more) throws SQLException {
        try (Connection connection = connected(more); Statement asked = connection.createStatement();
                ResultSet rows = asked.executeQuery("SELECT number FROM numbers(100000)")) {
            long count = 0;
            long sum = 0;
            while (rows.next()) {
                count++;
                sum += rows.getLong(1);
            }
            return List.of(count, sum);
        }
    }

    static Object packs() throws SQLException {
        return List.of(summed("compress", "false"), summed("decompress", "true"),
            summed("client.use_http_compression", "true"));
    }

    static List<String> names(ResultSet rows, String column) throws SQLException {
        TreeSet<String> names = new TreeSet<>();
        try (rows) {
            while (rows.next()) {
                names.add(rows.getString(column));
            }
        }
        return new ArrayList<>(names);
    }

    // As DBeaver and Metabase fill their menus.
    static Object menus() throws SQLException {
        Map<String, Object> seen = new LinkedHashMap<>();
        try (Connection connection = connected()) {
            var menu = connection.getMetaData();
            seen.put("schemas", names(menu.getSchemas(), "TABLE_SCHEM"));
            String[] kinds = {"TABLE", "VIEW"};
            seen.put("tables", names(menu.getTables(null, "sluice", "%", kinds), "TABLE_NAME"));
            seen.put("columns", names(menu.getColumns(null, "sluice", "prices", "%"), "COLUMN_NAME"));
            seen.put("keys", names(menu.getPrimaryKeys(null, "sluice", "usage"), "COLUMN_NAME"));
            seen.put("kinds", names(menu.getTableTypes(), "TABLE_TYPE").contains("VIEW"));
            seen.put("types", names(menu.getTypeInfo(), "TYPE_NAME").contains("String"));
            seen.put("functions", names(menu.getFunctions(null, null, "toDate"), "FUNCTION_NAME"));
        }
        return seen;
    }

    // The columns of a statement that has not been run.
    static Object foresees() throws SQLException {
        String text = "SELECT model, cost FROM usage WHERE tenant_id = ?";
        try (Connection connection = connected(); PreparedStatement asked = connection.prepareStatement(text)) {
            var columns = asked.getMetaData();
            return List.of(columns.getColumnName(1), columns.getColumnTypeName(2));
        }
    }

    static Object code(String statement, String... more) throws SQLException {
        try (Connection connection = connected(more); Statement asked = connection.createStatement()) {
            asked.executeQuery(statement);
            return null;
        } catch (SQLException error) {
            return listed(error.getErrorCode(), error.getMessage().replaceAll("(?s).*\\(([A-Z_]+)\\).*", "$1"));
        }
    }

    static Object fails() throws SQLException {
        return Map.of("table", code("SELECT * FROM nothing"), "key", code("SELECT 1", "password", "wrong"));
    }

    static List<Object> listed(Object... values) {
        return java.util.Arrays.asList(values);
    }

    static String json(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        List<String> parts = new ArrayList<>();
        if (value instanceof Map<?, ?> map) {
            map.forEach((name, each) -> parts.add(json(name) + ":" + json(each)));
            return "{" + String.join(",", parts) + "}";
        }
        if (value instanceof List<?> list) {
            list.forEach(each -> parts.add(json(each)));
            return "[" + String.join(",", parts) + "]";
        }
        StringBuilder text = new StringBuilder();
        value.toString().chars().forEach(each -> text.append(each < 32 || each > 126 || each == '"' || each == '\\'
            ? String.format("\\u%04x", each) : String.valueOf((char) each)));
        return "\"" + text + "\"";
    }

    public static void main(String[] arguments) {
        Map<String, Ability> abilities = new LinkedHashMap<>();
        abilities.put("connects", ClickHouseJdbc::connects);
        abilities.put("asks", ClickHouseJdbc::asks);
        abilities.put("binds", ClickHouseJdbc::binds);
        abilities.put("streams", ClickHouseJdbc::summed);
        abilities.put("packs", ClickHouseJdbc::packs);
        abilities.put("menus", ClickHouseJdbc::menus);
        abilities.put("foresees", ClickHouseJdbc::foresees);
        abilities.put("fails", ClickHouseJdbc::fails);
        Map<String, Object> told = new LinkedHashMap<>();
        abilities.forEach((name, ability) -> {
            Map<String, Object> result = new LinkedHashMap<>();
            try {
                result.put("seen", ability.see());
            } catch (Exception | LinkageError error) {
                result.put("failed", error.toString());
            }
            told.put(name, result);
        });
        System.out.println(json(told));
    }
}
