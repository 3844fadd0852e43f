// SPDX-License-Identifier: Apache-2.0

package apikeyauthextension

import (
	"errors"

	"go.opentelemetry.io/collector/component"

	"github.com/gpuflight/gpuflight/internal/apikey"
)

// Config is the extension's configuration.
type Config struct {
	// File has the keys. Only its owner may write to it, and only its group may read it. The command gpuflight key edits it.
	File string `mapstructure:"file"`
}

func createDefaultConfig() component.Config { return &Config{File: apikey.DefaultFile} }

// Validate checks the path.
func (c *Config) Validate() error {
	if c.File == "" {
		return errors.New("file is empty: write for example /etc/otelcol-gpuflight/keys.json")
	}
	return nil
}
