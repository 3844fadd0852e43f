// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/extension/extensionauth"
	"go.opentelemetry.io/collector/extension/extensioncapabilities"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/collector/backend"
)

type gpuQuery struct {
	cfg     *Config
	set     component.TelemetrySettings
	version string
	server  *http.Server
	handler *server
	address string // that the server listens on
	done    sync.WaitGroup
	cancel  context.CancelFunc
}

var _ extensioncapabilities.Dependent = (*gpuQuery)(nil)

// Dependencies returns the extensions that start before this one.
func (q *gpuQuery) Dependencies() []component.ID {
	var ids []component.ID
	if q.cfg.Storage != nil {
		ids = append(ids, *q.cfg.Storage)
	} else {
		ids = append(ids, component.MustNewID("gpu_storage"))
	}
	if auth := q.cfg.Auth.Get(); auth != nil {
		ids = append(ids, auth.AuthenticatorID)
	}
	return ids
}

// Start opens the store and listens.
func (q *gpuQuery) Start(ctx context.Context, host component.Host) error {
	b, err := backend.Open(host, q.cfg.Storage, q.cfg.Backend)
	if err != nil {
		return err
	}
	var auth extensionauth.Server
	if cfg := q.cfg.Auth.Get(); cfg != nil {
		if auth, err = cfg.GetServerAuthenticator(ctx, host.GetExtensions()); err != nil {
			return fmt.Errorf("auth: %w", err)
		}
	}
	loopback, err := isLoopback(q.cfg.Endpoint)
	if err != nil {
		return err
	}
	q.handler = newServer(b, options{auth: auth, loopback: loopback, allowSQL: q.cfg.SQL, version: q.version, logger: q.set.Logger})
	if auth != nil && !loopback && !q.cfg.TLS.HasValue() {
		q.set.Logger.Warn("keys and data cross the network without encryption: set tls, or use a proxy with TLS and a loopback address")
	}
	var tlsConfig *tls.Config
	if cfg := q.cfg.TLS.Get(); cfg != nil {
		if tlsConfig, err = cfg.LoadTLSConfig(ctx); err != nil {
			return fmt.Errorf("tls: %w", err)
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", q.cfg.Endpoint)
	if err != nil {
		return fmt.Errorf("cannot serve the UI and the API at %s: %w: set another endpoint of gpu_query", q.cfg.Endpoint, err)
	}
	q.address = listener.Addr().String()
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	q.cancel = cancel
	q.server = &http.Server{
		Handler: q.handler, BaseContext: func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog:  zap.NewStdLog(q.set.Logger),
		TLSConfig: tlsConfig, ConnState: newConnections().changed,
	}
	serve, scheme := q.server.Serve, "http://"
	if tlsConfig != nil {
		serve, scheme = func(l net.Listener) error { return q.server.ServeTLS(l, "", "") }, "https://"
	}
	q.done.Go(func() {
		if err := serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			componentstatus.ReportStatus(host, componentstatus.NewFatalErrorEvent(err))
		}
	})
	q.set.Logger.Info("serving the UI and query API", zap.String("address", scheme+q.address))
	return nil
}

// Shutdown cancels running queries and stops the server.
func (q *gpuQuery) Shutdown(ctx context.Context) error {
	if q.server == nil {
		return nil
	}
	q.cancel()
	err := q.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, q.server.Close())
	}
	q.done.Wait()
	q.handler.audit.Flush()
	return err
}
