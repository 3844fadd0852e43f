// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
)

// keyVariable is the environment variable with the API key for a Collector that requires one.
const keyVariable = "GPUFLIGHT_KEY"

// defaultURL is the address of the query API of config/local.yaml.
const defaultURL = "http://127.0.0.1:8686"

// checkURL returns a usage error for a value of --url that is not an address.
func checkURL(address string) error {
	if u, err := url.Parse(address); err != nil || u.Host == "" {
		return &usageError{fmt.Errorf("--url %q: write for example %s", address, defaultURL)}
	}
	return nil
}

// queryAPI is a client of the Collector's query API (extension/gpuqueryextension/openapi.yaml).
type queryAPI struct{ address string }

// storedSession is a session as the API lists it, without the fields that are not used here.
type storedSession struct {
	ID         string           `json:"id"`
	Service    string           `json:"service"`
	Host       string           `json:"host"`
	Run        string           `json:"run"`
	Rank       string           `json:"rank"`
	RankSize   string           `json:"rank_size"`
	PID        int64            `json:"pid"`
	Start      int64            `json:"start,string"` // Unix nanoseconds
	DurationNs int64            `json:"duration_ns"`
	Operations map[string]int64 `json:"operations"`
	KernelNs   int64            `json:"kernel_ns"`
	Bytes      int64            `json:"bytes"`
	Live       bool             `json:"live"`
	Pinned     bool             `json:"pinned"`
}

// state says in words what a user may want to know before deleting the session.
func (s *storedSession) state() string {
	var words []string
	if s.Live {
		words = append(words, "live")
	}
	if s.Pinned {
		words = append(words, "pinned")
	}
	return strings.Join(words, ", ")
}

// open sends a request and returns the body of a successful answer.
func (a queryAPI) open(ctx context.Context, method, path string, body io.Reader) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(a.address, "/")+"/api/v1"+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/octet-stream")
	}
	// Other users can see the arguments of a process, but not its environment.
	if key := os.Getenv(keyVariable); key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	switch wrapped := (*url.Error)(nil); {
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("no Collector answers at %s: run otelcol-gpuflight --config config/local.yaml, or set --url", a.address)
	case errors.As(err, &wrapped):
		return nil, fmt.Errorf("%s: %w", a.address, wrapped.Err) // without the long path
	case err != nil:
		return nil, err
	}
	if resp.StatusCode/100 == 2 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	var answer struct{ Error string }
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err == nil && json.Unmarshal(text, &answer) == nil && answer.Error != "" {
		return nil, fmt.Errorf("the Collector rejected the request: %s", answer.Error)
	}
	return nil, fmt.Errorf("%s answers with %s", a.address, resp.Status)
}

// do sends a request and decodes the answer into a value, or ignores it if the value is nil.
func (a queryAPI) do(ctx context.Context, method, path string, body io.Reader, answer any) error {
	in, err := a.open(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer in.Close()
	if answer == nil {
		return nil
	}
	return json.NewDecoder(in).Decode(answer)
}

// sessions lists all sessions whose id, service, host or run contains a text, newest first.
func (a queryAPI) sessions(ctx context.Context, text string) ([]storedSession, error) {
	var all []storedSession
	cursor := ""
	for {
		var page struct {
			Sessions []storedSession
			Next     string
		}
		query := url.Values{"limit": {"1000"}, "q": {text}, "cursor": {cursor}}
		if err := a.do(ctx, http.MethodGet, "/sessions?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Sessions...)
		if cursor = page.Next; cursor == "" {
			return all, nil
		}
	}
}

// find returns the session with an id, or the only one whose id begins with a text.
func (a queryAPI) find(ctx context.Context, id string) (storedSession, error) {
	list, err := a.sessions(ctx, id)
	if err != nil {
		return storedSession{}, err
	}
	var found []storedSession
	for _, s := range list {
		if s.ID == id {
			return s, nil
		}
		if strings.HasPrefix(s.ID, id) {
			found = append(found, s)
		}
	}
	switch len(found) {
	case 0:
		return storedSession{}, fmt.Errorf("no session has an id that begins with %q", id)
	case 1:
		return found[0], nil
	}
	return storedSession{}, fmt.Errorf("%d sessions have an id that begins with %q: give more of it", len(found), id)
}

// baseline is a name of a session.
type baseline struct{ Name, Session string }

func (a queryAPI) baselines(ctx context.Context) ([]baseline, error) {
	var answer struct{ Baselines []baseline }
	err := a.do(ctx, http.MethodGet, "/baselines", nil, &answer)
	return answer.Baselines, err
}

// add imports an exported session and returns its id.
func (a queryAPI) add(ctx context.Context, file io.Reader) (id string, err error) {
	var answer struct{ Session string }
	err = a.do(ctx, http.MethodPost, "/import", file, &answer)
	return answer.Session, err
}
