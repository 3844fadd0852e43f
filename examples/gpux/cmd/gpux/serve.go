// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
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
		Use: "serve MODEL...", Short: "Answer inference requests over HTTP",
		Long: `Answer inference requests over HTTP, as a plain JSON route and in version 2 of
KServe's protocol. If GPUX_API_KEY is set, requests must send it as bearer
token; commas separate several keys. An address that other machines reach needs
it.

Each model has its own queue and limits. Folders with the same name and another
version are versions of a model; clients that name none get the first one.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("name a model")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			ctx := cmd.Context()
			var configs []*config.Config
			for _, name := range args {
				c, err := find(name)
				if err != nil {
					return err
				}
				configs = append(configs, c)
			}
			c := configs[0]
			if host == "" {
				host = c.Serving.Host
			}
			if port < 0 {
				port = c.Serving.Port
			}
			keys := slices.DeleteFunc(strings.Split(os.Getenv("GPUX_API_KEY"), ","), func(key string) bool { return key == "" })
			if !loopback(host) && len(keys) == 0 {
				return fmt.Errorf("%s can be reached from other machines: set GPUX_API_KEY to a secret, or serve at 127.0.0.1", host)
			}
			if (certificate == "") != (key == "") {
				return usageError{errors.New("--tls-cert and --tls-key need each other")}
			}
			name, version := c.Name, c.Version
			if len(configs) > 1 {
				name, version = "gpux", cmd.Root().Version
			}
			shutdown, err := record(ctx, name, version)
			if err != nil {
				return err
			}
			defer func() {
				bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
				defer cancel()
				err = errors.Join(err, shutdown(bound))
			}()
			otel.SetTextMapPropagator(propagation.TraceContext{}) // a client's trace goes on here
			options := server.Options{Keys: keys, Warn: a.warn}
			for _, c := range configs {
				m, err := a.load(c, provider, engine.Options{})
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, m.Close()) }()
				info, err := describe(c, m.Info)
				if err != nil {
					return err
				}
				a.table(info)
				a.selected(m.Selection)
				a.printf("\n")
				options.Models = append(options.Models, server.Served{
					Config: c, Info: m.Info, Model: m, Selection: m.Selection, Size: info.SizeBytes, Preprocessor: m.preprocessor,
				})
			}
			options.Runtime = engine.Version()
			s, err := server.New(options)
			if err != nil {
				return err
			}
			listener, err := listen(net.JoinHostPort(host, strconv.Itoa(port)), certificate, key)
			if err != nil {
				s.Close()
				return err
			}
			scheme := "http"
			if certificate != "" {
				scheme = "https"
			}
			a.printf("Serving at %s://%s: POST /predict, POST /v2/models/%s/infer, /health, /info, /metrics, /openapi.json\n", scheme, listener.Addr(), c.Name)
			if status := gpufl.CurrentStatus(); !status.Recording {
				a.warn("GPU work is not recorded: %s", status.Detail)
			}
			warm, done := context.WithCancel(ctx)
			var warming sync.WaitGroup
			warming.Go(func() { s.WarmUp(warm) })
			err = s.Serve(ctx, listener, grace)
			done()
			warming.Wait()
			return err
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
