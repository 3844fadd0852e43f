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
	apiKeys         = "./internal/apikey"
	gpuQuery        = "extension/gpuqueryextension"
	gpuflogReceiver = "./receiver/gpuflogreceiver"
	cudaProbe       = "./receiver/cudareceiver/internal/probe"
	fileStorage     = "./extension/storage/filestorageextension"
	fleet           = "./test/fleet"
	inject          = "./test/inject"
)

// builds are the commands that compile files which go test does not compile.
var builds = map[string]string{
	"cupti/inject/loader/loader.c":          "rm -f bin/libgpuflight.so; cupti/inject/loader/build bin/libgpuflight.so",
	"receiver/cudareceiver/bpf/cuda.bpf.c":  "go generate " + cudaProbe,
	"receiver/cudareceiver/bpf/trace.bpf.c": "go generate " + cudaProbe,
}

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
		"memory is bounded: a full batch", "internal/gpuevent/batch.go",
		"const maxItems = 8192", "const maxItems = 8192000",
		"./internal/gpuflog", "^TestDecoder_Expansion$",
	},
	{
		"memory is bounded: a long text on many rows", "internal/gpuflog/decoder.go",
		"const maxText = 16 << 10", "const maxText = 16 << 20",
		"./internal/gpuflog", "^TestDecoder_Expansion$",
	},
	{
		"memory is bounded: nested scopes", "internal/gpuflog/scope.go",
		"if levels < maxLevels {", "if levels >= 0 {",
		"./internal/gpuflog", "^TestDecoder_Expansion$",
	},
	{
		"memory is bounded: a message of Kafka that expands", "extension/encoding/gpuflogencodingextension/reader.go",
		"maxParts = 8", "maxParts = 8000",
		"./extension/encoding/gpuflogencodingextension", "^TestUnmarshal_LineThatExpands$",
	},
	{
		"clients are isolated: the share of a principal", "receiver/gpuflogreceiver/internal/ingest/budget.go",
		"used+n > b.total-b.total/4", "used+n > b.total",
		gpuflogReceiver + "/internal/ingest", "^TestBudget_Shares$",
	},
	{
		"clients are isolated: the share of a host", "receiver/gpuflogreceiver/internal/ingest/budget.go",
		"used+n > b.total/2", "used+n > b.total",
		gpuflogReceiver + "/internal/ingest", "^TestBudget_Shares$",
	},
	{
		"clients are isolated: requests of a token", "receiver/gpuflogreceiver/http.go",
		"s.requests.For(s.client(r))", "s.requests.For(ingest.Client{})",
		gpuflogReceiver, "^TestRequests_SlowClientsOfOneToken$",
	},
	{
		"clients are isolated: bytes of a token", "receiver/gpuflogreceiver/http.go",
		"s.budget.For(s.client(r))", "s.budget",
		gpuflogReceiver, "^TestBytes_SlowClientOfOneToken$",
	},
	{
		"clients are isolated: places that decode", "receiver/gpuflogreceiver/slots.go",
		" && t.held[who] < t.each", "",
		gpuflogReceiver, "^TestFairSlots_Fair$",
	},
	{
		"clients are isolated: the turn of waiting requests", "receiver/gpuflogreceiver/slots.go",
		"if len(t.waiting[next]) > 0 { // to the end of the order", "if false {",
		gpuflogReceiver, "^TestFairSlots_Fair$",
	},
	{
		"clients are isolated: sessions of a principal", "receiver/gpuflogreceiver/intake.go",
		"byOwner[s.windows.owner]", "byOwner[who]",
		gpuflogReceiver, "^TestSessions_ShareOfAPrincipal$",
	},
	{
		"clients are isolated: max_sessions of a principal", "receiver/gpuflogreceiver/intake.go",
		"case len(own) >= limit ||", "case false ||",
		gpuflogReceiver, "^TestSessions_Bound$",
	},
	{
		"clients are isolated: a session belongs to its credentials", "receiver/gpuflogreceiver/intakestate.go",
		"return t.owner == who ||", "return true || t.owner == who ||",
		gpuflogReceiver, "^TestSessions_ForeignToken$",
	},
	{
		"clients are isolated: a stored session belongs to its credentials", "receiver/gpuflogreceiver/intakestate.go",
		"s.windows.owner[i] = d.Byte()", "_, _ = i, d.Byte()",
		gpuflogReceiver, "^TestSessions_ForeignToken$",
	},
	{
		"clients are isolated: the share of a process in the map of kernels", "receiver/cudareceiver/bpf/cuda.bpf.c",
		"left > r->held[CLASS_SUMS] ||", "left > 0 ||",
		cudaProbe, "^TestNeighbors_Kernels$",
	},
	{
		"clients are isolated: the share of a process in other maps", "receiver/cudareceiver/bpf/cuda.bpf.c",
		"return r->held[class] < room(r->user, class);", "return room(r->user, class) > 0;",
		cudaProbe, "^TestNeighbors_Threads$",
	},
	{
		"clients are isolated: the share of a user in a map", "receiver/cudareceiver/bpf/cuda.bpf.c",
		"- used(ALL_USERS, class) - used(user, class)", "- used(ALL_USERS, class)",
		cudaProbe, "^TestNeighbors_KernelsOfManyProcesses$",
	},
	{
		"clients are isolated: traced calls that have not returned", "receiver/cudareceiver/bpf/trace.bpf.c",
		"(t ? t->flights : 0) < room", "room + u.own->flights > 0",
		cudaProbe, "^TestNeighbors_TracedCallsInFlight$",
	},
	{
		"clients are isolated: the ring of traced calls", "receiver/cudareceiver/bpf/trace.bpf.c",
		"(t ? t->events : 0) < (__s64)max_events - all - own", "all + own >= 0",
		cudaProbe, "^TestNeighbors_TracedCalls$",
	},
	{
		"clients are isolated: the share of a process in a table", "receiver/cudareceiver/internal/fair/fair.go",
		"t.processes[process] >= t.size-t.total-t.users[user]", "t.users[user] >= t.size-t.total",
		"./receiver/cudareceiver/internal/fair", "^TestTable_SingleProcess$",
	},
	{
		"clients are isolated: the share of a user in a table", "receiver/cudareceiver/internal/fair/fair.go",
		"t.processes[process] >= t.size-t.total-t.users[user]", "t.processes[process] >= t.size-t.total",
		"./receiver/cudareceiver/internal/fair", "^TestTable_NewUsers$",
	},
	{
		"clients are isolated: names of kernels", "receiver/cudareceiver/internal/fair/fair.go",
		"t.processes[process] >= t.size-t.total-t.users[user]", "t.total >= t.size",
		cudaProbe, "^TestReader_NamesOfManyProcesses$",
	},
	{
		"clients are isolated: files of a user", "receiver/cudareceiver/internal/probe/shares_linux.go",
		"userFiles, totalFiles = 512, 4096", "userFiles, totalFiles = 4096, 4096",
		cudaProbe, "^TestDiscover_Shares$",
	},
	{
		"clients are isolated: descriptors of a user", "receiver/cudareceiver/internal/probe/shares_linux.go",
		"userDescriptors, totalDescriptors = 128, 320", "userDescriptors, totalDescriptors = 320, 320",
		cudaProbe, "^TestAdmit_AttachedShare$",
	},
	{
		"a recorded program keeps its limits: descriptors", "cupti/inject/loader/loader.c",
		"NEED_FILES = 64", "NEED_FILES = 1",
		inject, "^TestLimits_Rlimits$/^descriptors$",
	},
	{
		"a recorded program keeps its limits: threads", "cupti/inject/loader/loader.c",
		"NEED_THREADS = 24", "NEED_THREADS = 1",
		inject, "^TestLimits_Rlimits$/^threads$",
	},
	{
		"a recorded program keeps its limits: address space", "cupti/inject/loader/loader.c",
		"need_space = (size_t)4096 << 20", "need_space = (size_t)1 << 20",
		inject, "^TestLimits_Rlimits$/^address_space$",
	},
	{
		"a recorded program keeps its limits: data memory", "cupti/inject/loader/loader.c",
		"need_data = (size_t)512 << 20", "need_data = (size_t)1 << 20",
		inject, "^TestLimits_Rlimits$/^data$",
	},
	{
		"a recording is readable for its user only: created by trace", "cmd/gpuflight/trace.go",
		"os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600", "os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644",
		"./cmd/gpuflight", "^TestTrace_RecordingMode$",
	},
	{
		"a recording is readable for its user only: replaced by trace", "cmd/gpuflight/trace.go",
		"f.Chmod(0o600)", "f.Chmod(0o644)",
		"./cmd/gpuflight", "^TestTrace_RecordingMode$",
	},
	{
		"a recording is readable for its user only: created by the recorder", "internal/recording/otlp/file.go",
		"os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600", "os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644",
		"./internal/recording/otlp", "^TestFile_RoundTrip$",
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
		"foreign files: an identity that a user chooses", "receiver/cudareceiver/internal/probe/open_linux.go",
		"o.id.device, o.id.born = overlay, uint64(born.Sec)*1e9+uint64(born.Nsec)", "o.id.device, _ = overlay, born",
		cudaProbe, "^TestFile_ForgedOverlayIdentity$",
	},
	{
		"state on disk: fsync", fileStorage + "/factory.go",
		"cfg.FSync = true", "cfg.FSync = false",
		fileStorage, "^TestDefaultConfig_FSync$",
	},
	{
		"state on disk: fsync in shipped configurations", "config/agent.yaml",
		"    create_directory: true", "    create_directory: true\n    fsync: false",
		"./test/storage", "^TestShippedConfigs_FSync$",
	},
	{
		"state on disk: a damaged file is set aside", fileStorage + "/extension.go",
		"return s.setAside(path, err)", "return err",
		fileStorage, "^TestGetClient_DamagedFile$",
	},
	{
		"state on disk: a truncated file", fileStorage + "/internal/boltcheck/boltcheck.go",
		"m.pages > uint64(c.size/c.pageBytes)", "false",
		fileStorage + "/internal/boltcheck", "^TestCheck_DamagedFiles$",
	},
	{
		"state on disk: a page that is used twice", fileStorage + "/internal/boltcheck/boltcheck.go",
		"if c.seen[id/8]&(1<<(id%8)) != 0 {", "if false {",
		fileStorage + "/internal/boltcheck", "^TestCheck_DamagedFiles$",
	},
	{
		"state on disk: two Collectors on one directory", fileStorage + "/lock_unix.go",
		"return errInUse", "return nil",
		fileStorage, "^TestGetClient_DamagedInUse$",
	},
	{
		"state on disk: a start on a full disk", fileStorage + "/extension.go",
		"min(space.Used, maxRoom); room < need {", "min(space.Used, maxRoom); room < 0*need {",
		fileStorage, "^TestGetClient_FullDisk$",
	},
	{
		"state on disk: requests are read on a full disk", fileStorage + "/client.go",
		"return c.Client.Batch(ctx, reads...)", "return err",
		fileStorage, "^TestBatch_Full$",
	},
	{
		"state on disk: values of gpuflog have a checksum", "receiver/gpuflogreceiver/receiver.go",
		"storageclient.Checked(client)", "client",
		gpuflogReceiver, "^TestStore_DamagedSession$",
	},
	{
		"state on disk: values of gpu_usage have a checksum", "connector/gpuusageconnector/log.go",
		"binary.LittleEndian.Uint64(b[n:]) != xxhash.Sum64(b[:n])", "len(b) == 0",
		"./connector/gpuusageconnector", "^TestDamagedStateBeginsAnewAndSaysSo$",
	},
	{
		"state on disk: the clock was set back", "connector/gpuusageconnector/connector.go",
		"return max(now.UnixNano(), c.state.now+int64(elapsed))", "_ = elapsed\n\treturn now.UnixNano()",
		"./connector/gpuusageconnector", "^TestConnector_ClockSetBack$",
	},

	{
		"Kafka: a leader that is lost after acknowledgements", "config/kafka.yaml",
		"required_acks: -1", "required_acks: 1",
		fleet, "^TestReplicas_LeaderLost$/^shipped$",
	},
	{
		"Kafka: no automatic topics", "config/kafka.yaml",
		"allow_auto_topic_creation: false", "allow_auto_topic_creation: true",
		fleet, "^TestKafka_TopicsMissing$",
	},
	{
		"files are their own queue", "config/kafka.yaml",
		"wait_for_result: true", "wait_for_result: false",
		fleet, "^TestStop_NextUnavailable$",
	},
	{
		"Kafka: SASL of the page", "docs/deploying.md",
		"  kafka/files: &kafka\n    tls: {ca_file: /etc/otelcol-gpuflight/tls/ca.pem}\n    auth:\n      sasl:\n        mechanism: SCRAM-SHA-512",
		"  kafka/files: &kafka\n    tls: {ca_file: /etc/otelcol-gpuflight/tls/ca.pem}\n    auth:\n      sasl:\n        mechanism: PLAIN",
		fleet, "^TestKafkaAndS3_TLSAndSCRAM$",
	},
	{
		"OTLP: confirmed when it is on the agent's disk", "config/kafka.yaml",
		"      storage: file_storage\n      sizer: bytes\n", "      sizer: bytes\n",
		fleet, "^TestAgent_NewMachine$",
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
		"gateway: no queue between Kafka and the backend", "config/forward.yaml",
		"wait_for_result: true", "wait_for_result: false",
		fleet, "^TestGateway_KilledBeforeDelivery$/^shipped$",
	},
	{
		"gateway: a record that is no OTLP does not stop its partition", "config/gateway.yaml",
		"on_permanent_error: true", "on_permanent_error: false",
		fleet, "^TestGateway_InvalidRecords$",
	},
	{
		"gateway: a backend that is away", "config/forward.yaml",
		"max_elapsed_time: 0s # retry forever", "max_elapsed_time: 1s",
		fleet, "^TestBackendDown$",
	},
	{
		"sampling: Kafka waits while too many traces wait", "config/sampling.yaml",
		"block_on_overflow: true", "block_on_overflow: false",
		fleet, "^TestTailSampling_Full$",
	},
	{
		"sampling: session spans are kept", "config/sampling.yaml",
		`["cuda.operation"] == "session"`, `["cuda.operation"] == "none"`,
		fleet, "^TestTailSampling$",
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
		"configurations listen on loopback", "config/agent.yaml",
		"127.0.0.1:4318}", "0.0.0.0:4318}",
		"./test/distribution", "^TestConfigs_Loopback$",
	},
	{
		"certificates: only clients with a certificate", "docs/deploying.md",
		"          client_ca_file: ", "          # client_ca_file: ",
		fleet, "^TestFleet_TLS$",
	},
	{
		"keys: revoked and changed keys count at once", "internal/apikey/file.go",
		"if err == nil && k.info != nil && os.SameFile", "if err == nil || k.info != nil && os.SameFile",
		apiKeys, "^TestKeys_Reload$",
	},
	{
		"keys: the whole secret counts", "internal/apikey/apikey.go",
		"subtle.ConstantTimeCompare([]byte(hash(text)), []byte(k.SHA256)) == 1", "subtle.ConstantTimeCompare([]byte(hash(text)), []byte(k.SHA256)) >= 0",
		apiKeys, "^TestKeys_Check$",
	},
	{
		"keys: others cannot read the file", "internal/apikey/file.go",
		"mode&0o037 != 0", "mode&0o030 != 0",
		apiKeys, "^TestLoad_Permissions$",
	},
	{
		"keys: receivers require the scope ingest", "extension/apikeyauthextension/extension.go",
		"a.AuthenticateScope(ctx, apikey.Ingest, headers)", "a.AuthenticateScope(ctx, apikey.Read, headers)",
		"./extension/apikeyauthextension", "^TestAuthenticate$",
	},
	{
		"keys: changes require the scope admin", gpuQuery + "/access.go",
		"scope = apikey.Admin", "scope = apikey.Read",
		"./" + gpuQuery, "^TestAccess_EveryRoute$",
	},
	{
		"keys: a key reads its project only", gpuQuery + "/server.go",
		"req.project, _ = auth.GetAttribute(apikey.AttributeProject).(string)", "_, _ = auth.GetAttribute(apikey.AttributeProject).(string)",
		"./" + gpuQuery, "^TestServer_Authentication$",
	},
	{
		"keys: a session stays in the project of its key", "receiver/gpuflogreceiver/principal.go",
		"if projectOf(info) == name {", "if true || projectOf(info) == name {",
		gpuflogReceiver, "^TestProject_Eviction$",
	},
	{
		"UI: a login checks its key with each request", gpuQuery + "/access.go",
		"ctx, err := a.check(r.Context(), scope, headers)\n	if err != nil {", "ctx, err := a.check(r.Context(), scope, headers)\n	if err != nil && headers.Get(\"Cookie\") != \"\" {\n		return r, nil\n	}\n	if err != nil {",
		"./" + gpuQuery, "^TestLogin$",
	},
	{
		"UI: a changing request with a cookie states its origin", gpuQuery + "/access.go",
		`r.Header.Get("Origin") == "" &&`, `r.Header.Get("Origin") == "none" &&`,
		"./" + gpuQuery, "^TestAccess_CSRF$",
	},
	{
		"UI: pages of other origins are rejected", gpuQuery + "/server.go",
		"strings.EqualFold(u.Host, r.Host)", `u.Host != "evil"`,
		"./" + gpuQuery, "^TestAccess_CSRF$",
	},
	{
		"UI: DNS rebinding", gpuQuery + "/server.go",
		"!isLocalName(r.Host)", `r.Host == ""`,
		"./" + gpuQuery, "^TestServer_ForeignRequests$",
	},
	{
		"UI: slow bodies end", gpuQuery + "/server.go",
		"_ = rc.SetReadDeadline(s.now().Add(d))", "_ = rc.SetReadDeadline(time.Now().Add(time.Hour))",
		"./" + gpuQuery, "^TestServer_SlowBody$",
	},
	{
		"UI: no address for other machines without auth", gpuQuery + "/config.go",
		"!loopback && !c.Auth.HasValue()", "loopback && !c.Auth.HasValue() && false",
		"./" + gpuQuery, "^TestConfig_Endpoint$",
	},
	{
		"audit log: sampling does not drop lines", "internal/collector/audit/audit.go",
		"_ = l.core.Write(entry, append([]zap.Field{zap.String(\"event\", event)}, fields...))",
		"if e := l.core.Check(entry, nil); e != nil {\n		e.Write(append([]zap.Field{zap.String(\"event\", event)}, fields...)...)\n	}",
		"./internal/collector/audit", "^TestLog_Limits$",
	},
}
