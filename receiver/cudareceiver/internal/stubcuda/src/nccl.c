/* SPDX-License-Identifier: Apache-2.0
 *
 * A libnccl that does nothing, with NCCL's own names and signatures. As NCCL's does, ncclBcast calls ncclBroadcast.
 */
#include "stub.h"

typedef int ncclResult_t, ncclDataType_t, ncclRedOp_t;
typedef void *ncclComm_t, *cudaStream_t;

#define REDUCE(name)                                                                                           \
  API ncclResult_t name(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t c, \
                        cudaStream_t s) {                                                                      \
    (void)from, (void)to, (void)n, (void)type, (void)op, (void)c, (void)s;                                     \
    CALL(name);                                                                                                \
    return 0;                                                                                                  \
  }
REDUCE(ncclAllReduce)
REDUCE(ncclReduceScatter)

#define MOVE(name)                                                                                                       \
  API ncclResult_t name(const void *from, void *to, size_t n, ncclDataType_t type, ncclComm_t c, cudaStream_t s) {       \
    (void)from, (void)to, (void)n, (void)type, (void)c, (void)s;                                                         \
    CALL(name);                                                                                                          \
    return 0;                                                                                                            \
  }
MOVE(ncclAllGather)
MOVE(ncclAlltoAll)

API ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t type, int root, ncclComm_t c, cudaStream_t s) {
  (void)from, (void)to, (void)n, (void)type, (void)root, (void)c, (void)s;
  CALL(ncclBroadcast);
  return 0;
}

API ncclResult_t ncclSend(const void *from, size_t n, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t s) {
  (void)from, (void)n, (void)type, (void)peer, (void)c, (void)s;
  CALL(ncclSend);
  return 0;
}

API ncclResult_t ncclRecv(void *to, size_t n, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t s) {
  (void)to, (void)n, (void)type, (void)peer, (void)c, (void)s;
  CALL(ncclRecv);
  return 0;
}

API ncclResult_t ncclBcast(void *data, size_t n, ncclDataType_t type, int root, ncclComm_t c, cudaStream_t s) {
  return ncclBroadcast(data, data, n, type, root, c, s);
}

API ncclResult_t ncclGroupStart(void) { CALL(ncclGroupStart); return 0; }
API ncclResult_t ncclGroupEnd(void) { CALL(ncclGroupEnd); return 0; }
