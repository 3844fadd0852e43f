// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configauth"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// keys is an authenticator. The token of a key is its project.
type keys struct {
	component.StartFunc
	component.ShutdownFunc
}

func (keys) Authenticate(ctx context.Context, headers map[string][]string) (context.Context, error) {
	h := headers["Authorization"]
	if len(h) != 1 {
		return ctx, errors.New("no key")
	}
	return client.NewContext(ctx, client.Info{Auth: project(strings.TrimPrefix(h[0], "Bearer "))}), nil
}

// perProject records which projects the spans of sessions were delivered to.
type perProject struct {
	*exact
	mu  sync.Mutex
	got map[string]map[string]int // by project and session
}

func (p *perProject) ConsumeTraces(ctx context.Context, td ptrace.Traces) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := projectOf(client.FromContext(ctx))
	if p.got[name] == nil {
		p.got[name] = map[string]int{}
	}
	for _, rs := range td.ResourceSpans().All() {
		id, _ := rs.Resource().Attributes().Get("service.instance.id")
		p.got[name][id.AsString()] += td.SpanCount()
	}
	return nil
}

// TestProject_Eviction lets the request of a third project evict the sessions of two others. Their
// last spans still belong to their own projects, also after a restart.
func TestProject_Eviction(t *testing.T) {
	for name, restart := range map[string]bool{"running": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			p := &perProject{exact: newExact(), got: map[string]map[string]int{}}
			m := &memory{m: map[string][]byte{}}
			auth := extension{id: component.MustNewID("keys"), component: keys{}}
			change := func(c *Config) {
				c.Protocols.HTTP.Get().Auth = configoptional.Some(confighttp.AuthConfig{Config: configauth.Config{AuthenticatorID: auth.id}})
				c.Protocols.HTTP.Get().MaxSessions = 1
			}
			r, url := serve(t, p, m, change, auth)
			post := func(token, session string) int {
				return send(t, url, stream(t, session, joined(jobStart(session), copies(session, 1, 3))).with(token)).status
			}
			require.Equal(t, http.StatusOK, post("team-a", "session-a"))
			require.Equal(t, http.StatusOK, post("team-b", "session-b"))
			assert.Equal(t, http.StatusConflict, post("team-b", "session-a"), "the session of another project")
			if restart {
				r.stop()
				r, url = serve(t, p, m, change, auth)
			}
			for _, session := range []string{"session-c", "session-d", "session-e"} {
				require.Equal(t, http.StatusOK, post("team-"+session[8:], session))
			}
			r.stop()
			evicted := 0
			for name, sessions := range p.got {
				for session, spans := range sessions {
					assert.Equal(t, "session"+strings.TrimPrefix(name, "team"), session)
					// Three copies, the job and the session.
					assert.Equal(t, 5, spans)
					evicted++
				}
			}
			assert.GreaterOrEqual(t, evicted, 3, "two of five sessions may be in memory")
		})
	}
}
