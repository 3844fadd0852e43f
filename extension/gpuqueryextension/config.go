// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"errors"
	"fmt"
	"net"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configauth"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/config/configtls"
)

// Config is the extension's configuration.
type Config struct {
	// Endpoint is the address that the server listens on.
	Endpoint string `mapstructure:"endpoint"`
	// Storage is the extension with the stores. Without it, the only one is used.
	Storage *component.ID `mapstructure:"storage"`
	// Backend is the name of the store. Without it, the only one is used.
	Backend string `mapstructure:"backend"`
	// Auth is the authenticator of requests to the API. Addresses other than loopback require it.
	Auth configoptional.Optional[configauth.Config] `mapstructure:"auth"`
	// TLS has the server's certificate. Without it, the server uses HTTP.
	TLS configoptional.Optional[configtls.ServerConfig] `mapstructure:"tls"`
	// SQL allows SELECT statements over the tables of single sessions.
	SQL bool `mapstructure:"sql"`
}

func createDefaultConfig() component.Config { return &Config{Endpoint: "127.0.0.1:8686"} }

// Validate checks the endpoint.
func (c *Config) Validate() error {
	loopback, err := isLoopback(c.Endpoint)
	if err != nil {
		return fmt.Errorf("endpoint: %w", err)
	}
	if !loopback && !c.Auth.HasValue() {
		return errors.New("endpoint " + c.Endpoint + " is reachable from other machines: set auth, or use 127.0.0.1")
	}
	return nil
}

// isLoopback reports whether an address accepts connections of this machine only.
func isLoopback(endpoint string) (bool, error) {
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		return false, err
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback(), nil
}
