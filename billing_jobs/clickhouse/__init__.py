"""ClickHouse's own HTTP interface over the embedded engine, for analysts and the clients that they use."""
