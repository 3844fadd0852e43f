// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fleet_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/test/fleet/broker"
	"github.com/gpuflight/gpuflight/test/fleet/certificates"
)

// TestKafkaAndS3_TLSAndSCRAM sends from an agent through Kafka to S3 with the settings of
// docs/deploying.md. An agent with a wrong password delivers nothing.
func TestKafkaAndS3_TLSAndSCRAM(t *testing.T) {
	parallel(t)
	const user, password = "gpuflight", "scram-s3cret"
	tls := certificates.Make(t)
	// Kafka reads the key and the certificate from one file.
	var store strings.Builder
	for _, name := range []string{"server.key", "server.pem"} {
		text, err := os.ReadFile(tls.Path(name))
		require.NoError(t, err)
		store.Write(text)
	}
	require.NoError(t, os.WriteFile(tls.Path("broker.pem"), []byte(store.String()), 0o600))

	secure := process.FreePort(t)
	_, port, _ := strings.Cut(secure, ":")
	k := &kafkaServer{t: t, Broker: broker.Broker{
		Launcher: findKafka(t), Dir: t.TempDir(), Address: process.FreePort(t), Controller: process.FreePort(t),
	}}
	k.Properties = map[string]string{
		"listeners":                      "PLAINTEXT://" + k.Address + ",SASL_SSL://" + secure + ",CONTROLLER://" + k.Controller,
		"advertised.listeners":           "PLAINTEXT://" + k.Address + ",SASL_SSL://localhost:" + port,
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
		"sasl.enabled.mechanisms":        "SCRAM-SHA-512",
		"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
		"ssl.keystore.type":     "PEM",
		"ssl.keystore.location": tls.Path("broker.pem"),
	}
	require.NoError(t, k.Format(t.Context(), "--add-scram", "SCRAM-SHA-512=[name="+user+",password="+password+"]"))
	k.launch()
	k.wait()

	s, archive := sessionOf(t, some), startS3(t, tls)
	agentOf := func(password string) *collector {
		agent := newCollector(t, "kafka.yaml", map[string]string{
			"GPUFLIGHT_KAFKA": "localhost:" + port, "GPUFLIGHT_LOGS": s.logs,
			"GPUFLIGHT_KAFKA_USER": user, "GPUFLIGHT_KAFKA_PASSWORD": password,
		}, nil)
		agent.configs = append(agent.configs, tls.Settings(t, "kafka-tls.yaml"))
		return agent.run()
	}
	reader := newCollector(t, "archive.yaml", map[string]string{
		"GPUFLIGHT_KAFKA": "localhost:" + port, "GPUFLIGHT_KAFKA_USER": user, "GPUFLIGHT_KAFKA_PASSWORD": password,
		"GPUFLIGHT_S3_ENDPOINT": archive.url, "AWS_CA_BUNDLE": tls.Path("ca.pem"), "GPUFLIGHT_S3_FLUSH": "1s",
	}, nil)
	reader.configs = append(reader.configs, tls.Settings(t, "kafka-reader-tls.yaml"))
	reader.run()

	stranger := agentOf("wrong-s3cret")
	process.Eventually(t, 2*time.Minute, "an attempt of the stranger", func() bool {
		return strings.Contains(stranger.process.Output(), "SASL_AUTHENTICATION_FAILED")
	})
	require.Empty(t, archive.objects(), "nothing of the stranger")
	stranger.terminate()

	agent := agentOf(password)
	got := testsink.NewStore(keys...)
	process.Eventually(t, 3*time.Minute, "all spans in the archive", func() bool {
		got = testsink.NewStore(keys...)
		for _, o := range archive.objects() {
			decode(t, got, signal(t, o.key), o.body)
		}
		return got.Distinct().Spans >= s.want.Distinct().Spans && got.Distinct().Logs >= s.want.Distinct().Logs
	})
	agent.stop()
	reader.stop()
	same(t, "archive", s.want, got)
	for _, c := range []*collector{agent, reader, stranger} {
		assert.NotContains(t, c.process.Output(), "s3cret", "%s logs the password", filepath.Base(c.configs[0]))
	}
}
