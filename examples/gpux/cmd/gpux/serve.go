// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/server"
	"github.com/gpuflight/gpuflight/sdk/gpufl"
)

// grace is how long requests may take after the server was told to stop.
const grace = 30 * time.Second

func (a *app) serve() *cobra.Command {
	var host, provider, certificate, key string
	port := -1
	cmd := &cobra.Command{
		Use: "serve MODEL", Short: "Answer inference requests over HTTP",
		Long: `Answer inference requests over HTTP, as a plain JSON route and in version 2 of
KServe's protocol. If GPUX_API_KEY is set, requests must send it as bearer
token. An address that other machines reach needs it.`,
		Args: one("model"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			ctx := cmd.Context()
			c, err := find(args[0])
			if err != nil {
				return err
			}
			if host == "" {
				host = c.Serving.Host
			}
			if port < 0 {
				port = c.Serving.Port
			}
			secret := os.Getenv("GPUX_API_KEY")
			if !loopback(host) && secret == "" {
				return fmt.Errorf("%s can be reached from other machines: set GPUX_API_KEY to a secret, or serve at 127.0.0.1", host)
			}
			if (certificate == "") != (key == "") {
				return usageError{errors.New("--tls-cert and --tls-key need each other")}
			}
			shutdown, err := record(ctx, c)
			if err != nil {
				return err
			}
			defer func() {
				bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
				defer cancel()
				err = errors.Join(err, shutdown(bound))
			}()
			otel.SetTextMapPropagator(propagation.TraceContext{}) // a client's trace goes on here
			m, err := a.load(c, provider, engine.Options{})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, m.Close()) }()
			info, err := describe(c, m.Info)
			if err != nil {
				return err
			}
			listener, err := listen(net.JoinHostPort(host, strconv.Itoa(port)), certificate, key)
			if err != nil {
				return err
			}
			s := server.New(server.Options{Config: c, Info: m.Info, Model: m, Selection: m.Selection, Size: info.SizeBytes, Runtime: engine.Version(), Key: secret})
			a.table(info)
			a.selected(m.Selection)
			scheme := "http"
			if certificate != "" {
				scheme = "https"
			}
			a.printf("\nServing at %s://%s: POST /predict, POST /v2/models/%s/infer, /health, /info, /metrics, /openapi.json\n", scheme, listener.Addr(), c.Name)
			if status := gpufl.CurrentStatus(); !status.Recording {
				a.warn("GPU work is not recorded: %s", status.Detail)
			}
			return s.Serve(ctx, listener, grace)
		},
	}
	f := cmd.Flags()
	f.StringVar(&host, "host", "", "address to listen at (default: serving.host)")
	f.IntVar(&port, "port", -1, "port to listen at; 0 takes a free one (default: serving.port)")
	f.StringVarP(&provider, "provider", "p", "", "use this provider only")
	f.StringVar(&certificate, "tls-cert", "", "certificate in PEM")
	f.StringVar(&key, "tls-key", "", "private key in PEM")
	return cmd
}

func listen(address, certificate, key string) (net.Listener, error) {
	if certificate == "" {
		return net.Listen("tcp", address)
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	return tls.Listen("tcp", address, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
}
