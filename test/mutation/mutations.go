// SPDX-License-Identifier: Apache-2.0

package main

// mutation breaks one guarantee.
type mutation struct {
	guarantee string
	file      string // from the root
	// old is replaced wherever file contains it.
	old, replacement string
	pkg, run         string // the test that must fail
}

func (m mutation) test() string { return m.pkg + " " + m.run }

func (m mutation) String() string { return m.guarantee + ": " + m.file + ": " + m.test() }

const (
	gpuflogReceiver = "./receiver/gpuflogreceiver"
	cudaProbe       = "./receiver/cudareceiver/internal/probe"
	fleet           = "./test/fleet"
)

// mutations, in the order of README.md ("What you can rely on"), docs/deploying.md and SECURITY.md.
var mutations = []mutation{
	{
		"nothing is lost: refused data is sent again", "receiver/gpuflogreceiver/deliver.go",
		"e != nil && !consumererror.IsPermanent(e)", "e != nil && consumererror.IsPermanent(e)",
		gpuflogReceiver, "^TestReader_RetriesRejectedData$",
	},
	{
		"twice is the same as once: ids are derived", "internal/gpuevent/id.go",
		"	if h == 0 { // an id of zero means none",
		"	for random := range map[uint64]bool{1: true, 2: true, 4: true, 8: true} {\n\t\th ^= random\n\t\tbreak\n\t}\n	if h == 0 { // an id of zero means none",
		gpuflogReceiver, "^TestReader_RestartInTheMiddle$",
	},
	{
		"every loss is counted: a line without a type", "internal/gpuflog/decoder.go",
		`		d.reject(Malformed, "no type in "+excerpt(line))` + "\n", "",
		gpuflogReceiver, "^TestRejects_LineWithoutType$",
	},
	{
		"every loss is counted: a broken line", "internal/gpuflog/decoder.go",
		`d.reject(Malformed, recordNames[r.typ]+": "+excerptAt(r.b, r.i))`, "_ = r",
		gpuflogReceiver, "^TestReader_InvalidLines$",
	},
	{
		"every loss is counted: a line of a file above the limit", "receiver/gpuflogreceiver/internal/fileset/read.go",
		"	s.problem(Problem{\n		Reason: LineTooLong,", "	_ = (Problem{\n		Reason: LineTooLong,",
		gpuflogReceiver + "/internal/fileset", "Line",
	},
	{
		"every loss is counted: a line over HTTP above the limit", "receiver/gpuflogreceiver/intakesession.go",
		"			reason = \"line_too_long\"\n			s.in.counters.reject(context.Background(), reason, 1)\n", "			reason = \"line_too_long\"\n",
		gpuflogReceiver, "^TestWindow_ErrorLines$",
	},
	{
		"memory is bounded: the longest line of a file", "receiver/gpuflogreceiver/internal/fileset/read.go",
		"return min(2*n, s.cfg().MaxLineBytes+1)", "return 2 * n",
		gpuflogReceiver + "/internal/fileset", ".",
	},
	{
		"a slow client is cut off: default of read_timeout", "receiver/gpuflogreceiver/config.go",
		"s.ReadTimeout = 2 * time.Minute", "s.ReadTimeout = 0",
		gpuflogReceiver, "^TestDefaults_TimeLimits$",
	},
	{
		"foreign files: symbols of a library", "receiver/cudareceiver/internal/probe/symbols.go",
		"f.EachSymbol(&table, maxSymbols,", "f.EachSymbol(&table, 100*maxSymbols,",
		cudaProbe, "^TestFunctions_Limits$",
	},
	{
		"foreign files: no FIFO is opened", "receiver/cudareceiver/internal/probe/open_linux.go",
		"o.stat.Mode&unix.S_IFMT != unix.S_IFREG", "false",
		cudaProbe, "^TestOpen_NoRegularFile$",
	},

	{
		"Kafka: a leader that is lost after acknowledgements", "config/kafka.yaml",
		"required_acks: -1", "required_acks: 1",
		fleet, "^TestReplicas_LeaderLost$/^shipped$",
	},
	{
		"Kafka: a broker that is away", "config/kafka.yaml",
		"max_elapsed_time: 0s # retry forever", "max_elapsed_time: 1s",
		fleet, "^TestReplicas_LeaderLost$/^shipped$",
	},
	{
		"Kafka: a record counts as read once the backend has it", "config/gateway.yaml",
		"after: true", "after: false",
		fleet, "^TestGateway_KilledBeforeDelivery$/^shipped$",
	},
	{
		"gateway: no queue between Kafka and the backend", "config/gateway.yaml",
		"wait_for_result: true", "wait_for_result: false",
		fleet, "^TestGateway_KilledBeforeDelivery$/^shipped$",
	},
	{
		"gateway: a record that is no OTLP does not stop its partition", "config/gateway.yaml",
		"on_permanent_error: true", "on_permanent_error: false",
		fleet, "^TestGateway_InvalidRecords$",
	},
	{
		"gateway: a backend that is away", "config/gateway.yaml",
		"max_elapsed_time: 0s # retry forever", "max_elapsed_time: 1s",
		fleet, "^TestBackendDown$",
	},
	{
		"sampling: Kafka waits while too many traces wait", "config/sampling.yaml",
		"block_on_overflow: true", "block_on_overflow: false",
		fleet, "^TestTailSampling_Full$",
	},
	{
		"OTLP: a slow client over HTTP is cut off", "config/agent.yaml",
		"read_timeout: 10s", "read_timeout: 10m",
		fleet, "^TestSlowOTLPClients$",
	},
	{
		"OTLP: a slow client over gRPC does not delay the end", "config/gateway.yaml",
		"max_connection_age: 4s", "max_connection_age: 10m",
		fleet, "^TestSlowOTLPClients$",
	},
	{
		"certificates: only clients with a certificate", "docs/deploying.md",
		"          client_ca_file: ", "          # client_ca_file: ",
		fleet, "^TestFleet_TLS$",
	},
}
