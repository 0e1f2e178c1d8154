// clickhouse-go over HTTP: questions to ClickHouse's interface through database/sql and through its own API.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
)

var background = context.Background()

func options(key string, compression *clickhouse.Compression) *clickhouse.Options {
	address, _ := url.Parse(os.Getenv("CLICKHOUSE_URL"))
	return &clickhouse.Options{
		Protocol:    clickhouse.HTTP,
		Addr:        []string{address.Host},
		Auth:        clickhouse.Auth{Database: "sluice", Username: os.Getenv("CLICKHOUSE_USER"), Password: key},
		Compression: compression,
	}
}

func database(compression *clickhouse.Compression) *sql.DB {
	return clickhouse.OpenDB(options(os.Getenv("CLICKHOUSE_KEY"), compression))
}

func connects() (any, error) {
	address := fmt.Sprintf("%s/sluice?username=%s&password=%s",
		os.Getenv("CLICKHOUSE_URL"), os.Getenv("CLICKHOUSE_USER"), os.Getenv("CLICKHOUSE_KEY"))
	db, err := sql.Open("clickhouse", address)
	if err != nil {
		return nil, err
	}
	conn, err := clickhouse.Open(options(os.Getenv("CLICKHOUSE_KEY"), nil))
	if err != nil {
		return nil, err
	}
	patient, stop := context.WithTimeout(background, time.Hour)
	defer stop()
	return []bool{db.Ping() == nil, conn.Ping(patient) == nil}, nil
}

func asks() (any, error) {
	var model string
	var tokens uint64
	var cost string
	var nothing *string
	var day time.Time
	err := database(nil).QueryRow(
		"SELECT model, sum(output_tokens), toString(sum(cost)), CAST(NULL, 'Nullable(String)'), toDate(min(accepted_at))"+
			" FROM usage WHERE tenant_id = {tenant:String} AND choice IN {choices:Array(UInt32)} GROUP BY model",
		clickhouse.Named("tenant", "acme"), clickhouse.Named("choices", []uint32{0, 1}),
	).Scan(&model, &tokens, &cost, &nothing, &day)
	return []any{model, tokens, cost, nothing, day.Format(time.DateOnly)}, err
}

// Every column of a view, and parameters that the client itself puts in their places.
func binds() (any, error) {
	rows, err := database(nil).Query("SELECT * FROM usage WHERE tenant_id = ? AND accepted_at < ?", "acme", time.Now())
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	count := 0
	for rows.Next() {
		count++
	}
	return []any{count, columns[0]}, rows.Err()
}

func summed(compression *clickhouse.Compression) (any, error) {
	conn, err := clickhouse.Open(options(os.Getenv("CLICKHOUSE_KEY"), compression))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	asked := clickhouse.Context(background, clickhouse.WithParameters(clickhouse.Parameters{"rows": "100000"}))
	rows, err := conn.Query(asked, "SELECT number FROM numbers({rows:UInt64})")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var count, sum, number uint64
	for rows.Next() {
		if err := rows.Scan(&number); err != nil {
			return nil, err
		}
		count, sum = count+1, sum+number
	}
	return []uint64{count, sum}, rows.Err()
}

func streams() (any, error) { return summed(nil) }

func packs() (any, error) {
	var seen []any
	for _, method := range []clickhouse.CompressionMethod{
		clickhouse.CompressionLZ4, clickhouse.CompressionZSTD, clickhouse.CompressionGZIP,
	} {
		sums, err := summed(&clickhouse.Compression{Method: method})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
		seen = append(seen, sums)
	}
	return seen, nil
}

// Rows as they are read into a struct, and none.
func selects() (any, error) {
	conn, err := clickhouse.Open(options(os.Getenv("CLICKHOUSE_KEY"), nil))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var some, none []struct {
		Model string `ch:"model"`
		Rows  uint64 `ch:"rows"`
	}
	asked := "SELECT model, count() AS rows FROM usage WHERE tenant_id = $1 GROUP BY model"
	if err := errors.Join(conn.Select(background, &some, asked, "acme"), conn.Select(background, &none, asked, "nobody")); err != nil {
		return nil, err
	}
	version, err := conn.ServerVersion()
	if err != nil {
		return nil, err
	}
	return []any{some[0].Model, some[0].Rows, len(none), version.DisplayName}, nil
}

func fails() (any, error) {
	coded := func(db *sql.DB, statement string) any {
		_, err := db.Query(statement)
		var told *clickhouse.Exception
		if !errors.As(err, &told) {
			return fmt.Sprint(err)
		}
		_, named, _ := strings.Cut(told.Message, "(")
		return []any{told.Code, strings.TrimSuffix(named, ")")}
	}
	return map[string]any{
		"table": coded(database(nil), "SELECT * FROM nothing"),
		"key":   coded(clickhouse.OpenDB(options("wrong", nil)), "SELECT 1"),
	}, nil
}

func givesUp() (any, error) {
	db := database(nil)
	impatient, stop := context.WithTimeout(background, 300*time.Millisecond)
	defer stop()
	_, err := db.QueryContext(impatient, "SELECT sum(number) FROM numbers(1000000000000)")
	var one int
	then := db.QueryRow("SELECT toInt64(1)").Scan(&one)
	return []any{errors.Is(err, context.DeadlineExceeded), one}, then
}

func main() {
	told := map[string]map[string]any{}
	for name, ability := range map[string]func() (any, error){
		"connects": connects, "asks": asks, "binds": binds, "streams": streams, "packs": packs, "selects": selects,
		"fails": fails, "gives_up": givesUp,
	} {
		seen, err := ability()
		told[name] = map[string]any{"seen": seen}
		if err != nil {
			told[name] = map[string]any{"failed": err.Error()}
		}
	}
	line, err := json.Marshal(told)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}
