// The fields of a LeaderWorkerSet (leaderworkerset.x-k8s.io/v1), as its API's reference has them: no npm package does. Allowed values
// of texts are here too.
import type { ObjectMeta } from 'kubernetes-types/meta/v1';
import type { StatefulSetPersistentVolumeClaimRetentionPolicy } from 'kubernetes-types/apps/v1';
import type { PersistentVolumeClaim, PodTemplateSpec } from 'kubernetes-types/core/v1';

export interface LeaderWorkerSet {
  apiVersion: 'leaderworkerset.x-k8s.io/v1';
  kind: 'LeaderWorkerSet';
  metadata: ObjectMeta;
  spec: {
    leaderWorkerTemplate: {
      workerTemplate: PodTemplateSpec;
      leaderTemplate?: PodTemplateSpec;
      size?: number;
      restartPolicy?: 'Default' | 'None' | 'RecreateGroupAfterStart' | 'RecreateGroupOnPodRestart';
      subGroupPolicy?: { subGroupPolicyType?: 'LeaderExcluded' | 'LeaderWorker'; subGroupSize?: number };
      volumeClaimTemplates?: PersistentVolumeClaim[];
      persistentVolumeClaimRetentionPolicy?: StatefulSetPersistentVolumeClaimRetentionPolicy;
    };
    replicas?: number;
    startupPolicy?: 'LeaderCreated' | 'LeaderReady';
    networkConfig?: { subdomainPolicy: 'Shared' | 'UniquePerReplica' };
    rolloutStrategy?: {
      type: 'RollingUpdate';
      rollingUpdateConfiguration?: { maxSurge?: number | string; maxUnavailable?: number | string; partition?: number };
    };
  };
}
