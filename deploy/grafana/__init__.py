"""Dashboards for Grafana, over its data source for ClickHouse."""
