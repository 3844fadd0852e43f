// SPDX-License-Identifier: Apache-2.0

package gpustorageextension

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configopaque"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/config/configtls"
	"go.opentelemetry.io/collector/confmap"

	"github.com/gpuflight/gpuflight/internal/bytesize"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/duckstore"
)

// defaultBackend is the name of the DuckDB store that exists if the settings name no backend.
const defaultBackend = "default"

// Config is the extension's configuration.
type Config struct {
	// Backends are stores by name. Without any, there is a DuckDB store with the name "default".
	Backends map[string]BackendConfig `mapstructure:"backends"`
}

// BackendConfig configures one store. Exactly one kind is set.
type BackendConfig struct {
	// DuckDB keeps the store in files of this machine.
	DuckDB configoptional.Optional[DuckDBConfig] `mapstructure:"duckdb"`
	// ClickHouse keeps the store in tables of a server.
	ClickHouse configoptional.Optional[ClickHouseConfig] `mapstructure:"clickhouse"`
	// Retention limits the store.
	Retention RetentionConfig `mapstructure:"retention"`
}

// DuckDBConfig configures an embedded store.
type DuckDBConfig struct {
	// Directory has all files of the store. One Collector at a time may use it.
	Directory string `mapstructure:"directory"`
	// MemoryLimit bounds DuckDB's buffers. The process needs more.
	MemoryLimit ByteSize `mapstructure:"memory_limit"`
	// Threads is the number of threads that queries and compaction use.
	Threads int `mapstructure:"threads"`
}

// ClickHouseConfig configures a store on a server. Several Collectors may use its tables.
type ClickHouseConfig struct {
	// Endpoint is tcp://host:9000 or http(s)://host:8123, without credentials.
	Endpoint string              `mapstructure:"endpoint"`
	Username string              `mapstructure:"username"`
	Password configopaque.String `mapstructure:"password"`
	// Database is the database of the tables. It must exist.
	Database string `mapstructure:"database"`
	// CreateSchema creates absent tables at the start.
	CreateSchema bool `mapstructure:"create_schema"`
	// Timeout limits a statement.
	Timeout time.Duration `mapstructure:"timeout"`
	// TLS has certificates and names of a server that speaks TLS.
	TLS configoptional.Optional[configtls.ClientConfig] `mapstructure:"tls"`
}

// RetentionConfig has limits. Zero means no limit. Only sessions that ended and are not pinned are
// deleted, those that ended first before others.
type RetentionConfig struct {
	// MaxAge is how long a session is kept after its end.
	MaxAge time.Duration `mapstructure:"max_age"`
	// MaxSize bounds the bytes of all sessions.
	MaxSize ByteSize `mapstructure:"max_size"`
	// MinFree is the space that stays free on the disk.
	MinFree ByteSize `mapstructure:"min_free"`
	// RawMaxAge is how long the operations and samples of a session are kept after its end. Their
	// sums stay.
	RawMaxAge time.Duration `mapstructure:"raw_max_age"`
}

// ByteSize is a number of bytes. In a file it may have a unit, such as 64MiB.
type ByteSize int64

// UnmarshalText parses a number of bytes with or without a unit.
func (b *ByteSize) UnmarshalText(text []byte) error {
	n, err := bytesize.Parse(string(text))
	*b = ByteSize(n)
	return err
}

func createDefaultConfig() component.Config { return &Config{} }

// newBackend returns a backend of which no kind is set.
func newBackend() BackendConfig {
	return BackendConfig{
		DuckDB: configoptional.Default(DuckDBConfig{
			// Next to the state of other components.
			Directory:   filepath.Join("gpuflight-state", "store"),
			MemoryLimit: 256 << 20,
			Threads:     duckstore.DefaultThreads(),
		}),
		ClickHouse: configoptional.Default(ClickHouseConfig{
			Username: "default", Database: "default", CreateSchema: true, Timeout: 30 * time.Second,
			TLS: configoptional.Default(configtls.NewDefaultClientConfig()),
		}),
		Retention: RetentionConfig{MinFree: 1 << 30},
	}
}

// Unmarshal sets the defaults of a backend and reads its settings.
func (b *BackendConfig) Unmarshal(conf *confmap.Conf) error {
	*b = newBackend()
	if err := conf.Unmarshal(b); err != nil {
		return err
	}
	if b.ClickHouse.HasValue() && !conf.IsSet("retention::min_free") {
		b.Retention.MinFree = 0
	}
	return nil
}

// backends returns the configured backends, or the default one.
func (c *Config) backends() map[string]BackendConfig {
	if len(c.Backends) > 0 {
		return c.Backends
	}
	b := newBackend()
	b.DuckDB.GetOrInsertDefault()
	return map[string]BackendConfig{defaultBackend: b}
}

// Validate reports each mistake in one sentence with valid values.
func (c *Config) Validate() error {
	var errs []error
	directories := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Backends)) {
		b := c.Backends[name]
		at := "backends::" + name
		if name == "" {
			errs = append(errs, errors.New("backends has an empty name: write for example default"))
		}
		switch {
		case b.DuckDB.HasValue() && b.ClickHouse.HasValue():
			errs = append(errs, fmt.Errorf("%s has two kinds of store: set duckdb or clickhouse", at))
		case b.DuckDB.HasValue():
			d := b.DuckDB.Get()
			errs = append(errs, d.validate(at+"::duckdb"))
			if other, ok := directories[filepath.Clean(d.Directory)]; ok && d.Directory != "" {
				errs = append(errs, fmt.Errorf("%s::duckdb::directory is that of %s: give each store a directory of its own", at, other))
			}
			directories[filepath.Clean(d.Directory)] = at
		case b.ClickHouse.HasValue():
			errs = append(errs, b.ClickHouse.Get().validate(at+"::clickhouse"))
			if b.Retention.MinFree != 0 {
				errs = append(errs, fmt.Errorf("%s::retention::min_free is for DuckDB: remove it, because the disk belongs to the server", at))
			}
		default:
			errs = append(errs, fmt.Errorf("%s has no kind of store: set duckdb or clickhouse", at))
			continue
		}
		errs = append(errs, b.Retention.validate(at+"::retention"))
	}
	return errors.Join(errs...)
}

func (c *DuckDBConfig) validate(at string) error {
	var errs []error
	if c.Directory == "" {
		errs = append(errs, fmt.Errorf("%s::directory is empty: write for example ./gpuflight-state/store", at))
	}
	if c.MemoryLimit < 64<<20 {
		errs = append(errs, fmt.Errorf("%s::memory_limit is %d: it must be at least 64MiB", at, c.MemoryLimit))
	}
	if c.Threads < 1 || c.Threads > 256 {
		errs = append(errs, fmt.Errorf("%s::threads is %d: it must be between 1 and 256", at, c.Threads))
	}
	return errors.Join(errs...)
}

// validate never quotes the endpoint, which may have a password.
func (c *ClickHouseConfig) validate(at string) error {
	var errs []error
	const example = "write for example tcp://127.0.0.1:9000"
	u, err := url.Parse(c.Endpoint)
	switch {
	case c.Endpoint == "":
		errs = append(errs, fmt.Errorf("%s::endpoint is empty: %s", at, example))
	case err != nil || u.Host == "" || !slices.Contains([]string{"tcp", "http", "https"}, u.Scheme):
		errs = append(errs, fmt.Errorf("%s::endpoint is not a URL with tcp, http or https: %s", at, example))
	case u.User != nil || u.Query().Has("password") || u.Query().Has("username"):
		errs = append(errs, fmt.Errorf("%s::endpoint has credentials: write them in username and password", at))
	case strings.Trim(u.Path, "/") != "" || u.Query().Has("database"):
		errs = append(errs, fmt.Errorf("%s::endpoint has a database: write it in database", at))
	case u.Scheme == "http" && c.TLS.HasValue():
		errs = append(errs, fmt.Errorf("%s::tls is set for an endpoint with http: write https", at))
	}
	if c.Username == "" {
		errs = append(errs, fmt.Errorf("%s::username is empty: ClickHouse's first user is default", at))
	}
	if c.Database == "" {
		errs = append(errs, fmt.Errorf("%s::database is empty: ClickHouse's first database is default", at))
	}
	if c.Timeout <= 0 {
		errs = append(errs, fmt.Errorf("%s::timeout is %s: it must be positive", at, c.Timeout))
	}
	return errors.Join(errs...)
}

func (r *RetentionConfig) validate(at string) error {
	var errs []error
	for _, l := range []struct {
		name  string
		value int64
		text  string
	}{
		{"max_age", int64(r.MaxAge), r.MaxAge.String()}, {"raw_max_age", int64(r.RawMaxAge), r.RawMaxAge.String()},
		{"max_size", int64(r.MaxSize), fmt.Sprint(r.MaxSize)}, {"min_free", int64(r.MinFree), fmt.Sprint(r.MinFree)},
	} {
		if l.value < 0 {
			errs = append(errs, fmt.Errorf("%s::%s is %s: it must be positive, or 0 for no limit", at, l.name, l.text))
		}
	}
	if r.MaxAge > 0 && r.RawMaxAge >= r.MaxAge {
		errs = append(errs, fmt.Errorf("%s::raw_max_age is %s: it must be below max_age, which is %s", at, r.RawMaxAge, r.MaxAge))
	}
	return errors.Join(errs...)
}

func (r *RetentionConfig) limits() store.Retention {
	return store.Retention{MaxAge: r.MaxAge, MaxSize: int64(r.MaxSize), MinFree: int64(r.MinFree), RawMaxAge: r.RawMaxAge}
}
