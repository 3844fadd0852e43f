// SPDX-License-Identifier: Apache-2.0

//go:build linux

package wire_test

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
)

// connection is a connection to the receiver for raw bytes.
type connection struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func connect(t *testing.T, address string) *connection {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	return &connection{t: t, conn: conn, in: bufio.NewReader(conn)}
}

// reply is the part of an answer that clients read.
type reply struct {
	status             int
	Accepted, Rejected int
	WindowAcknowledged bool `json:"window_acknowledged"`
	Error              string
	Errors             []struct {
		Line         int
		Type, Reason string
	}
}

// exchange writes a request and reads its answer.
func (c *connection) exchange(request []byte) reply {
	c.t.Helper()
	_, err := c.conn.Write(request)
	require.NoError(c.t, err)
	resp, err := http.ReadResponse(c.in, nil)
	require.NoError(c.t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(c.t, err)
	r := reply{status: resp.StatusCode}
	if resp.StatusCode != http.StatusUnauthorized {
		require.NoError(c.t, json.Unmarshal(body, &r), string(body))
	}
	return r
}

// breakOff sends part of a request and closes the connection.
func breakOff(t *testing.T, address string, request []byte) {
	t.Helper()
	c := connect(t, address)
	_, err := c.conn.Write(request[:len(request)-len(request)/4])
	require.NoError(t, err)
	require.NoError(t, c.conn.Close())
}

// request builds a request of header lines and a body.
func request(path, address string, headers []string, body []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\n", path)
	for _, h := range headers {
		b.WriteString(strings.ReplaceAll(h, "ADDRESS", address) + "\r\n")
	}
	fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n", len(body))
	b.Write(body)
	return b.Bytes()
}

// java lists the headers that Java's HTTP client, used by the agent, adds over plain HTTP. It
// offers HTTP/2, which the receiver may ignore.
var java = []string{
	"Connection: Upgrade, HTTP2-Settings", "Host: ADDRESS", "HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAABgAGAAA",
	"Upgrade: h2c", "User-Agent: Java-http-client/21.0.2",
}

// lineRequest is a line as the older agent posts it (format document, section 7).
func lineRequest(t *testing.T, address, channel, line string, sent int64) []byte {
	t.Helper()
	var rec struct{ Type string }
	require.NoError(t, json.Unmarshal([]byte(line), &rec))
	data, err := json.Marshal(line)
	require.NoError(t, err)
	body := fmt.Sprintf(`{"agentSendingTime":%d,"data":%s,"type":"%s","hostname":"node-a","ipAddr":"192.0.2.7"}`, sent, data, rec.Type)
	headers := append(slices.Clone(java), "Content-Type: application/json", "X-Topic: gpu-trace-events", "X-Key: "+channel, "Authorization: Bearer "+token)
	return request("/api/v1/events/"+rec.Type, address, headers, []byte(body))
}

// TestReplay_ArticleAgent posts line by line, over one connection per channel. Some requests are
// interrupted and retried. Some arrive twice because their answer was lost.
func TestReplay_ArticleAgent(t *testing.T) {
	for name, base := range map[string]string{"a2-h200": "occupancy_demo", "golden-a2-flat": "demo_train", "golden-b-flat": "demo_train"} {
		t.Run(name, func(t *testing.T) {
			files, err := filepath.Glob(filepath.Join(recording(t, name), base+".*.log"))
			require.NoError(t, err)
			require.Len(t, files, 3)
			want := followed(t, files...)
			got := testsink.NewStore()
			address, stop := listen(t, got, t.TempDir())
			type channel struct {
				name  string
				lines []string
				conn  *connection
			}
			var channels []channel
			for _, f := range files {
				text, err := os.ReadFile(f)
				require.NoError(t, err)
				channels = append(channels, channel{
					name: strings.Split(filepath.Base(f), ".")[1], lines: strings.Split(strings.TrimSpace(string(text)), "\n"), conn: connect(t, address),
				})
			}
			// Channels in turn until each is complete: the agent polls them concurrently.
			for i, more := 0, true; more; i++ {
				more = false
				for _, c := range channels {
					if i >= len(c.lines) {
						continue
					}
					more = true
					req := lineRequest(t, address, c.name, c.lines[i], 1773600000000+int64(i))
					if i%5 == 2 {
						breakOff(t, address, req)
					}
					r := c.conn.exchange(req)
					require.Equal(t, http.StatusOK, r.status, r.Error)
					require.Equal(t, 1, r.Accepted)
					if i%7 == 3 {
						require.Equal(t, http.StatusOK, c.conn.exchange(req).status)
					}
				}
			}
			bad := lineRequest(t, address, "device", `{"type":"kernel_event"}`, 1)
			r := channels[0].conn.exchange(bad)
			assert.Equal(t, http.StatusBadRequest, r.status)
			assert.Equal(t, "the line names no session_id", r.Error)
			same(t, want, got)
			stop()
		})
	}
}

// window is a window of a session folder.
type window struct {
	session, channel string
	sequence         int
	gz               []byte
}

// windows returns the windows under a folder by session, channel and number.
func windows(t *testing.T, dir string) (list []window) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*", "*.log.gz"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, p := range paths {
		name := strings.Split(filepath.Base(p), ".")
		n, err := strconv.Atoi(name[1])
		require.NoError(t, err)
		gz, err := os.ReadFile(p)
		require.NoError(t, err)
		list = append(list, window{session: filepath.Base(filepath.Dir(p)), channel: name[0], sequence: n, gz: gz})
	}
	slices.SortFunc(list, func(a, b window) int {
		return cmp.Or(cmp.Compare(a.session, b.session), cmp.Compare(a.channel, b.channel), cmp.Compare(a.sequence, b.sequence))
	})
	return list
}

func (w window) lines(t *testing.T) int {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(w.gz))
	require.NoError(t, err)
	text, err := io.ReadAll(z)
	require.NoError(t, err)
	return bytes.Count(text, []byte("\n"))
}

// with returns the window with an additional line. Concatenated gzip files are valid.
func (w window) with(t *testing.T, line string) window {
	t.Helper()
	var b bytes.Buffer
	b.Write(w.gz)
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(line + "\n"))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	w.gz = b.Bytes()
	return w
}

// shipped is a window as the current agent posts it (format document, section 7.1).
func (w window) shipped(address string, crc uint32) []byte {
	headers := append(slices.Clone(java), "Content-Type: application/x-ndjson", "Content-Encoding: gzip", "Authorization: Bearer "+token,
		"X-GpuFlight-Session-Id: "+w.session, "X-GpuFlight-Hostname: node-a",
		fmt.Sprintf("X-GpuFlight-Window-Id: 49bbe9ac-6079-413d-9451-%012d", int(w.channel[1])<<16|w.sequence),
		"X-GpuFlight-Window-Channel: "+w.channel, "X-GpuFlight-Window-Sequence: "+strconv.Itoa(w.sequence),
		"X-GpuFlight-Window-CRC32: "+strconv.FormatUint(uint64(crc), 10))
	return request("/api/v1/events/stream", address, headers, w.gz)
}

func sessionComplete(address, session string) []byte {
	return request("/api/v1/events/session-complete", address, append(slices.Clone(java), "Authorization: Bearer "+token, "X-GpuFlight-Session-Id: "+session), nil)
}

// TestReplay_CurrentAgent posts windows over one connection. Each is damaged once in transit,
// interrupted once, and sent twice; the first contains an invalid line. The receiver restarts in
// the middle.
func TestReplay_CurrentAgent(t *testing.T) {
	for _, name := range []string{"c3-h200-minigpt", "golden-c3-session", "golden-c3-rotated", "c2-h200-engines"} {
		t.Run(name, func(t *testing.T) {
			dir := recording(t, name)
			want, got := followed(t, dir), testsink.NewStore()
			state := t.TempDir()
			address, stop := listen(t, got, state)
			conn := connect(t, address)
			list := windows(t, dir)
			sessions := map[string]bool{}
			for i, w := range list {
				if i == len(list)/2 {
					stop()
					address, stop = listen(t, got, state)
					conn = connect(t, address)
				}
				accepted, rejected := w.lines(t), 0
				if i == 0 {
					w, rejected = w.with(t, `{"type":"kernel_event_batch","session_id":`), 1
				}
				sum := crc32.ChecksumIEEE(w.gz)
				r := conn.exchange(w.shipped(address, sum+1))
				assert.Equal(t, http.StatusBadRequest, r.status)
				assert.Contains(t, r.Error, "the body is damaged")
				breakOff(t, address, w.shipped(address, sum))
				for range 2 {
					r = conn.exchange(w.shipped(address, sum))
					require.Equal(t, http.StatusOK, r.status, r.Error)
					assert.Equal(t, accepted, r.Accepted)
					assert.Equal(t, rejected, r.Rejected)
					assert.True(t, r.WindowAcknowledged, "nobody sends a bad line for ever")
				}
				sessions[w.session] = true
			}
			for id := range sessions {
				assert.Equal(t, http.StatusOK, conn.exchange(sessionComplete(address, id)).status)
			}
			same(t, want, got)
			// After the ends of the sessions the answers are the same, and no data is new.
			before := got.Counts()
			for i, w := range list {
				if i > 0 {
					r := conn.exchange(w.shipped(address, crc32.ChecksumIEEE(w.gz)))
					assert.Equal(t, http.StatusOK, r.status)
					assert.Equal(t, w.lines(t), r.Accepted)
				}
			}
			for id := range sessions {
				assert.Equal(t, http.StatusOK, conn.exchange(sessionComplete(address, id)).status)
			}
			assert.Equal(t, before, got.Counts())
			stop()
		})
	}
}

// uploaded is a window as gpufl 1.2.1 posts it, header by header.
func (w window) uploaded(address string) []byte {
	return request("/api/v1/events/stream", address, []string{
		"Accept: */*", "Host: ADDRESS", "Accept-Encoding: gzip, deflate", "Authorization: Bearer " + token,
		"User-Agent: gpufl-client/1.2.1 (deferred-upload)", "X-GpuFlight-Client-Version: 1.2.1", "X-GpuFlight-Wire-Version: 1",
		"X-GpuFlight-Session-Id: " + w.session, "Content-Encoding: gzip", "Content-Type: application/x-ndjson", "X-GpuFlight-Hostname: node-a",
	}, w.gz)
}

// TestReplay_Upload posts the channels sequentially, as `gpufl upload` does. Windows have no
// identity, and the scopes follow the kernels that ran in them. The upload is interrupted in the
// middle and starts again.
func TestReplay_Upload(t *testing.T) {
	for _, name := range []string{"c3-h200-minigpt", "golden-c3-session", "golden-c3-rotated", "c2-h200-engines", "c3-h200-scopes"} {
		t.Run(name, func(t *testing.T) {
			dir := recording(t, name)
			list := windows(t, dir)
			want, got := followed(t, dir), testsink.NewStore()
			address, stop := listen(t, got, t.TempDir())
			first := connect(t, address)
			for _, w := range list[:len(list)/2] {
				require.Equal(t, http.StatusOK, first.exchange(w.uploaded(address)).status)
			}
			breakOff(t, address, list[len(list)/2].uploaded(address))
			again := connect(t, address)
			for _, w := range list {
				r := again.exchange(w.uploaded(address))
				require.Equal(t, http.StatusOK, r.status, r.Error)
				assert.Equal(t, w.lines(t), r.Accepted)
				assert.Zero(t, r.Rejected)
			}
			if name == "c3-h200-scopes" {
				// One of its sessions was killed. Without a file, only the agent's message or a
				// long silence ends it.
				for _, w := range list {
					again.exchange(sessionComplete(address, w.session))
				}
			}
			same(t, want, got)
			stop()
		})
	}
}
