// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// newClient returns a client that sends the token to one address only. It follows redirects, but not
// from https to http.
func newClient(hub *url.URL, token string) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = 30 * time.Second
	transport.DisableCompression = true // sizes and ranges are of the file
	return &http.Client{
		Transport: &authorized{transport, hub.Scheme, hub.Host, token},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) >= 10 {
				return errors.New("there are more than 10 redirects")
			}
			if via[len(via)-1].URL.Scheme == "https" && r.URL.Scheme != "https" {
				return errors.New("the server redirects from https to http")
			}
			return nil
		},
	}
}

// authorized adds the token to requests for its scheme, host and port. The header is in no request
// that the client sees, so it cannot follow a redirect.
type authorized struct {
	next                http.RoundTripper
	scheme, host, token string
}

func (a *authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("User-Agent", "gpux")
	if a.token != "" && r.URL.Scheme == a.scheme && r.URL.Host == a.host {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	return a.next.RoundTrip(r)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// clean writes an address without user, password and query, which can be secrets.
func clean(u *url.URL) string {
	c := *u
	c.User, c.RawQuery, c.Fragment = nil, "", ""
	return c.String()
}

// statusError is an answer that is no success.
type statusError struct {
	address string
	code    int
}

func (e *statusError) Error() string {
	return fmt.Sprintf("GET %s: %d %s", e.address, e.code, http.StatusText(e.code))
}

// permanent says that the same request will fail again.
func permanent(err error) bool {
	var s *statusError
	if errors.As(err, &s) {
		return s.code < 500 && s.code != http.StatusTooManyRequests && s.code != http.StatusRequestTimeout
	}
	var host *net.DNSError
	return errors.As(err, &host) && host.IsNotFound
}

// get requests an address from a byte on. The body fails if it delivers nothing for r.stall. Start is
// the first byte of the body: 0 if the server has no ranges.
func (r *Registry) get(ctx context.Context, address *url.URL, offset int64) (body io.ReadCloser, start int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		cancel(nil)
		return nil, 0, fmt.Errorf("GET %s: the address is not valid", clean(address))
	}
	if offset > 0 {
		q.Header.Set("Range", "bytes="+strconv.FormatInt(offset, 10)+"-")
	}
	resp, err := r.client.Do(q)
	if err != nil {
		cancel(nil)
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // its text has the whole address, which can contain a signature
		}
		return nil, 0, fmt.Errorf("GET %s: %w", clean(address), err)
	}
	switch {
	case resp.StatusCode == http.StatusOK:
	case resp.StatusCode == http.StatusPartialContent && strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(offset, 10)+"-"):
		start = offset
	default:
		cancel(nil)
		_ = resp.Body.Close()
		return nil, 0, &statusError{clean(address), resp.StatusCode}
	}
	stalled := fmt.Errorf("the server sent nothing for %s", r.stall)
	return &watched{
		ReadCloser: resp.Body, ctx: ctx, cancel: cancel, limit: r.stall,
		timer: time.AfterFunc(r.stall, func() { cancel(stalled) }),
	}, start, nil
}

// watched ends a body that stalls.
type watched struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	limit  time.Duration
	timer  *time.Timer
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.timer.Reset(w.limit)
	if err != nil && !errors.Is(err, io.EOF) {
		if cause := context.Cause(w.ctx); cause != nil {
			err = cause
		}
	}
	return n, err
}

func (w *watched) Close() error {
	w.timer.Stop()
	w.cancel(nil)
	return w.ReadCloser.Close()
}
