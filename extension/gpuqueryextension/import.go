// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"time"
)

const (
	importPath    = "/api/v1/import"
	maxImport     = 8 << 30
	maxImportTime = time.Hour // for a file of maxImport bytes
	maxImports    = 2
)

// importFile adds the session of an exported file. It reads the file before it takes one of the slots
// of queries, so that a slow client delays only other imports.
func (s *server) importFile(w http.ResponseWriter, hr *http.Request) {
	ctx, cancel := context.WithTimeout(hr.Context(), maxImportTime)
	defer cancel()
	session, err := s.receiveFile(ctx, hr)
	if err != nil {
		s.fail(ctx, w, err)
		return
	}
	s.write(w, hr, http.StatusCreated, map[string]string{"session": session})
}

func (s *server) receiveFile(ctx context.Context, hr *http.Request) (session string, err error) {
	r, err := newRequest(hr)
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return "", err
	}
	select {
	case s.importing <- struct{}{}:
		defer func() { <-s.importing }()
	default:
		return "", &status{http.StatusTooManyRequests, "too many imports are in progress"}
	}
	f, err := os.CreateTemp("", "gpuflight-import-*.duckdb")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = io.Copy(f, hr.Body)
	if err = errors.Join(err, f.Close()); err != nil {
		var file *fs.PathError
		var large *http.MaxBytesError
		if !errors.As(err, &file) && !errors.As(err, &large) {
			return "", &status{http.StatusBadRequest, "the body ends too early"}
		}
		return "", err
	}
	if !s.begin(ctx) {
		return "", &status{http.StatusTooManyRequests, "too many requests are in progress"}
	}
	defer s.end()
	return s.store.Import(ctx, r.project, f.Name())
}
