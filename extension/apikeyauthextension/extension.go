// SPDX-License-Identifier: Apache-2.0

package apikeyauthextension

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/extensionauth"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/apikey"
	"github.com/gpuflight/gpuflight/internal/collector/audit"
)

// apiKeyAuth is safe for concurrent use after Start.
type apiKeyAuth struct {
	file   string
	logger *zap.Logger
	audit  *audit.Log
	keys   *apikey.Keys
}

var (
	_ extensionauth.Server = (*apiKeyAuth)(nil)
	_ apikey.Authenticator = (*apiKeyAuth)(nil)
)

// Start reads the keys.
func (a *apiKeyAuth) Start(context.Context, component.Host) (err error) {
	a.keys, err = apikey.Open(a.file, time.Now, func(added, removed []string, err error) {
		if err != nil {
			a.logger.Error("the key file cannot be read: all requests are rejected", zap.Error(err))
			return
		}
		a.audit.Record("keys", zap.Strings("added", added), zap.Strings("revoked", removed))
	})
	if err != nil {
		return fmt.Errorf("file: %w", err)
	}
	return nil
}

// Shutdown writes the rest of the audit log.
func (a *apiKeyAuth) Shutdown(context.Context) error {
	a.audit.Flush()
	return nil
}

var errNotStarted = errors.New("the authenticator has not started")

// Authenticate accepts requests with a key that has the scope ingest. The audit log has the others.
func (a *apiKeyAuth) Authenticate(ctx context.Context, headers map[string][]string) (context.Context, error) {
	authenticated, err := a.AuthenticateScope(ctx, apikey.Ingest, headers)
	if err != nil {
		fields := append(audit.Client(ctx, ""), zap.String("reason", err.Error()))
		if id := apikey.ID(bearer(headers)); id != "" {
			fields = append(fields, zap.String("presented", id))
		}
		a.audit.RecordLimited("refused", fields...)
	}
	return authenticated, err
}

// AuthenticateScope accepts requests with a key that has a scope. The caller writes the audit log.
func (a *apiKeyAuth) AuthenticateScope(ctx context.Context, scope apikey.Scope, headers map[string][]string) (context.Context, error) {
	if a.keys == nil {
		return ctx, errNotStarted
	}
	key, err := a.keys.Check(bearer(headers), scope)
	if errors.Is(err, apikey.ErrScope) {
		err = fmt.Errorf("%w %s", err, scope)
	}
	if err != nil {
		return ctx, err
	}
	info := client.FromContext(ctx)
	info.Auth = identity{key}
	return client.NewContext(ctx, info), nil
}

// bearer returns the token of the header Authorization: its name is in lower case over gRPC. It is
// "" if there are none or several.
func bearer(headers map[string][]string) string {
	var values []string
	for name, v := range headers {
		if strings.EqualFold(name, "authorization") {
			values = append(values, v...)
		}
	}
	if len(values) != 1 {
		return ""
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// identity describes a key without its secret.
type identity struct{ key *apikey.Key }

var _ client.AuthData = identity{}

// GetAttribute implements [client.AuthData].
func (i identity) GetAttribute(name string) any {
	switch name {
	case apikey.AttributeProject:
		return i.key.Project
	case apikey.AttributeSubject:
		return i.key.Name
	case apikey.AttributeID:
		return i.key.ID
	case apikey.AttributeScopes:
		scopes := make([]string, len(i.key.Scopes))
		for n, s := range i.key.Scopes {
			scopes[n] = string(s)
		}
		return scopes
	}
	return nil
}

// GetAttributeNames implements [client.AuthData].
func (identity) GetAttributeNames() []string {
	return []string{apikey.AttributeProject, apikey.AttributeSubject, apikey.AttributeID, apikey.AttributeScopes}
}
