// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/orttest"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/server"
)

// BenchmarkPredict measures a request without its connection.
func BenchmarkPredict(b *testing.B) {
	orttest.Open(b)
	c, err := config.Read(orttest.Digits())
	require.NoError(b, err)
	m, err := engine.Load(c.ModelPath(), engine.Options{Threads: 1})
	require.NoError(b, err)
	defer func() { require.NoError(b, m.Close()) }()
	s, err := server.New(server.Options{Models: []server.Served{{Config: c, Info: m.Info, Model: m, Selection: m.Selection}}})
	require.NoError(b, err)
	defer s.Close()
	for _, rows := range []int{1, 16} {
		b.Run(strconv.Itoa(rows), func(b *testing.B) {
			body, err := json.Marshal(map[string]any{"image": orttest.ReadExpected(b).Image[:rows]})
			require.NoError(b, err)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/predict", bytes.NewReader(body)))
				if w.Code != http.StatusOK {
					b.Fatal(w.Body)
				}
			}
		})
	}
}
