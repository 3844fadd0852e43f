// SPDX-License-Identifier: Apache-2.0

package clickstore

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
)

// Config says how to reach the server.
type Config struct {
	// Endpoint is a URL of clickhouse-go: tcp://host:9000, tcps://… or http(s)://host:8123. Its query has
	// options of the driver, such as compress=zstd.
	Endpoint string
	// Username and Password replace those of Endpoint if they are not "".
	Username, Password string
	// Database is the database of the tables, which must exist; "" means that of Endpoint, or the default.
	Database string
	// TLS replaces the settings of Endpoint if it is not nil.
	TLS *tls.Config
	// CreateSchema creates absent tables.
	CreateSchema bool
	// Timeout limits a statement; 0 means 30 s.
	Timeout time.Duration
}

// options never returns an error with the endpoint, which may have a password.
func (c *Config) options() (*clickhouse.Options, error) {
	o, err := clickhouse.ParseDSN(c.Endpoint)
	if err != nil || len(o.Addr) == 0 {
		return nil, errors.New("endpoint: not a URL such as tcp://127.0.0.1:9000")
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
	o.ReadTimeout = c.Timeout
	if c.Timeout == 0 {
		o.ReadTimeout = 30 * time.Second
	}
	if c.Timeout < 0 {
		return nil, fmt.Errorf("timeout %s: negative", c.Timeout)
	}
	o.MaxOpenConns, o.MaxIdleConns = 16, 8
	return o, nil
}
