// SPDX-License-Identifier: Apache-2.0

package clickstore

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
)

// Config says how to reach the server.
type Config struct {
	// Endpoint is a URL: tcp://host:9000 or http(s)://host:8123. Its query has options of clickhouse-go,
	// such as compress=zstd; LZ4 is the default.
	Endpoint string
	// Username and Password replace those of Endpoint if they are not "".
	Username, Password string
	// Database is the database of the tables, which must exist; "" means that of Endpoint, or the default.
	Database string
	// TLS replaces the settings of Endpoint if it is not nil.
	TLS *tls.Config
	// CreateSchema creates absent tables.
	CreateSchema bool
	// Timeout limits a statement, except those that seal or delete a session; 0 means 30 s.
	Timeout time.Duration
}

// longTimeout limits a call that seals or deletes a session.
const longTimeout = 10 * time.Minute

// options never returns an error with the endpoint, which may have a password.
func (c *Config) options() (*clickhouse.Options, error) {
	if c.Timeout < 0 {
		return nil, fmt.Errorf("timeout %s: negative", c.Timeout)
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Host == "" || !slices.Contains([]string{"tcp", "http", "https"}, u.Scheme) {
		return nil, errors.New("endpoint: not a URL such as tcp://127.0.0.1:9000")
	}
	if q := u.Query(); u.Scheme == "https" && !q.Has("secure") {
		q.Set("secure", "true") // without it, the driver rejects the scheme
		u.RawQuery = q.Encode()
	}
	o, err := clickhouse.ParseDSN(u.String())
	if err != nil {
		return nil, errors.New("endpoint: its options are not those of clickhouse-go")
	}
	if c.Username != "" {
		o.Auth.Username = c.Username
	}
	if c.Password != "" {
		o.Auth.Password = c.Password
	}
	if c.Database != "" {
		o.Auth.Database = c.Database
	}
	if c.TLS != nil {
		o.TLS = c.TLS
	}
	if o.Compression == nil {
		o.Compression = &clickhouse.Compression{Method: clickhouse.CompressionLZ4}
	}
	o.ReadTimeout = cmp.Or(c.Timeout, 30*time.Second)
	o.MaxOpenConns, o.MaxIdleConns = 16, 8
	return o, nil
}
