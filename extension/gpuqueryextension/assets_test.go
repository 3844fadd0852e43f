// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"compress/gzip"
	"io"
	"net/http"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAssets_Bundle(t *testing.T) {
	s, _ := generated(t)
	index := call(s, http.MethodGet, "/")
	require.Equal(t, http.StatusOK, index.Code)
	assert.Equal(t, "text/html; charset=utf-8", index.Header().Get("Content-Type"))
	route := call(s, http.MethodGet, "/sessions/a.b/timeline")
	assert.Equal(t, index.Body.String(), route.Body.String(), "routes of the UI get the index")
	tag := index.Header().Get("ETag")
	assert.Equal(t, http.StatusNotModified, call(s, http.MethodGet, "/", "If-None-Match", tag).Code)
	files := regexp.MustCompile(`(?:src|href)="(/[^"]+)"`).FindAllStringSubmatch(index.Body.String(), -1)
	require.NotEmpty(t, files)
	size := 0
	for _, f := range files {
		plain := call(s, http.MethodGet, f[1])
		require.Equal(t, http.StatusOK, plain.Code, f[1])
		assert.NotContains(t, plain.Header().Get("Content-Type"), "text/html", f[1])
		packed := call(s, http.MethodGet, f[1], "Accept-Encoding", "gzip, br")
		require.Equal(t, "gzip", packed.Header().Get("Content-Encoding"), f[1])
		size += packed.Body.Len()
		z, err := gzip.NewReader(packed.Body)
		require.NoError(t, err)
		body, err := io.ReadAll(z)
		require.NoError(t, err)
		assert.Equal(t, plain.Body.String(), string(body))
	}
	assert.Less(t, size, 250_000, "bytes of the compressed bundle")
	assert.Equal(t, http.StatusNotFound, call(s, http.MethodGet, "/assets/none.js").Code)
	assert.Equal(t, http.StatusMethodNotAllowed, call(s, http.MethodPost, "/").Code)
	for _, target := range []string{"/../openapi.yaml", "/%2e%2e/openapi.yaml", "/notbuilt/index.html"} {
		assert.NotContains(t, call(s, http.MethodGet, target).Body.String(), "openapi: 3", target)
	}
}
