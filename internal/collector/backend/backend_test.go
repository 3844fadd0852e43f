// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"

	"github.com/gpuflight/gpuflight/internal/store"
)

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

type storage struct {
	component.Component
	backends map[string]store.Backend
}

func (s *storage) Backend(name string) (store.Backend, error) {
	if b, ok := s.backends[name]; ok {
		return b, nil
	}
	return nil, errors.New("no backend " + name)
}

type named struct {
	store.Backend
	name string
}

func TestOpen_Choice(t *testing.T) {
	a, b := component.MustNewID("gpu_storage"), component.MustNewIDWithName("gpu_storage", "b")
	other := component.MustNewID("file_storage")
	first, second := named{name: "first"}, named{name: "second"}
	h := host{
		a:     &storage{backends: map[string]store.Backend{"": first}},
		b:     &storage{backends: map[string]store.Backend{"x": second}},
		other: struct{ component.Component }{},
	}
	for _, tt := range []struct {
		name, backend string
		host          host
		id            *component.ID
		want          store.Backend
		err           string
	}{
		{name: "only one", host: host{a: h[a], other: h[other]}, want: first},
		{name: "by id", host: h, id: &b, backend: "x", want: second},
		{name: "unknown backend", host: h, id: &b, err: "no backend "},
		{name: "none", host: host{other: h[other]}, err: "no store is configured: add gpu_storage to extensions and to service::extensions"},
		{name: "several", host: h, err: "several stores are configured: set storage to one of gpu_storage, gpu_storage/b"},
		{name: "not configured", host: host{}, id: &a, err: `storage "gpu_storage" is not configured: add it to extensions and to service::extensions`},
		{name: "another extension", host: h, id: &other, err: `storage "file_storage" has no store: use gpu_storage`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Open(tt.host, tt.id, tt.backend)
			if tt.err != "" {
				require.EqualError(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
		})
	}
}
